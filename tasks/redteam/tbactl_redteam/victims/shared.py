"""One victim for all who ask for the same: a searcher's task and its held-out task, which evaluates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tbactl.errors import ConfigError
from tbactl_redteam.victims import Victim
from tbactl_redteam.victims.options import VictimOptions, victim_problem


@dataclass(eq=False, slots=True)
class _Held:
    """A victim and how many hold it."""

    victim: Victim
    turn: threading.Lock = field(default_factory=threading.Lock)
    num_holders: int = 0


# A process builds its task twice, and a second copy of the victim would take its memory twice.
_held: dict[str, _Held] = {}
_registry_lock = threading.Lock()


class SharedVictim:
    """A share in a victim. Calls of all holders take turns; the last one to close ends the victim."""

    def __init__(self, key: str, held: _Held) -> None:
        self._key = key
        self._held = held
        self._is_closed = False

    def answer(self, attacks: Sequence[str]) -> list[list[str | None]]:
        assert not self._is_closed, "the victim is closed"
        # What no encoding can carry (lone surrogates) would stop a whole call on its way to the victim.
        encodable = [attack.encode("utf-8", errors="replace").decode("utf-8") for attack in attacks]
        with self._held.turn:
            return self._held.victim.answer(encodable)

    def close(self) -> None:
        with _registry_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._held.num_holders -= 1
            is_last = self._held.num_holders == 0
            if is_last:
                del _held[self._key]
        if is_last:
            self._held.victim.close()


def shared_victim(options: VictimOptions) -> SharedVictim:
    """A share in the victim with these options, which is made for the first to ask.

    Raises:
        ConfigError: as `load_victim`.
    """
    key = options.model_dump_json()
    with _registry_lock:
        if key not in _held:
            _held[key] = _Held(_make(options))
        held = _held[key]
        held.num_holders += 1
    return SharedVictim(key, held)


def _make(options: VictimOptions) -> Victim:
    problem = victim_problem(options)
    if problem is not None:
        raise ConfigError(f"task.options.victim.{problem}.")
    if options.kind == "echo":
        from tbactl_redteam.victims.echo_victim import EchoVictim

        return EchoVictim(options)
    if options.kind == "http":
        from tbactl_redteam.victims.http_victim import HttpVictim

        return HttpVictim(options)
    from tbactl_redteam.victims.engine_victim import EngineVictim

    return EngineVictim(options)

"""Victims: the models that attacks are tried on. Light to import: each kind is read when it is asked for.

Attacks and answers are text that models wrote: they are passed on, and never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tbactl_redteam.victims.options import VictimOptions, victim_problem

__all__ = ["Victim", "VictimOptions", "load_victim", "victim_problem"]


class Victim(Protocol):
    """Answers attacks. May be called from any thread: calls take turns."""

    def answer(self, attacks: Sequence[str]) -> list[list[str | None]]:
        """For each attack its `num_answers` answers, in order; None: this answer could not be had.

        Raises:
            ConfigError: the victim cannot be loaded, or the endpoint refuses or is not there.
            TaskError: the endpoint has stopped answering.
            ChildFailedError: the victim's process keeps dying.
        """
        ...

    def close(self) -> None:
        """Let go of the victim. A call that runs in another thread ends with None for what is missing.

        That is soon where the victim is a process, which ends, and after `call_timeout_s` at the latest where it is an
        endpoint.
        """
        ...


def load_victim(options: VictimOptions) -> Victim:
    """A victim; one that is held already in this process, with equal options, is shared.

    Raises:
        ConfigError: it needs a package that is not installed, or a key that the environment does not have.
    """
    from tbactl_redteam.victims.shared import shared_victim

    return shared_victim(options)

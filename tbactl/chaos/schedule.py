"""Which faults, in which order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice

from tbactl.chaos.faults import KINDS, NUM_SEARCHERS, PHASES, Fault, Kind, Phase, Role, places
from tbactl.errors import ConfigError

# Steps that come before a fault in the phases that come again and again. A checkpoint comes every third.
AT_STEPS = (3, 7)


def schedule(
    seed: int, *, num_faults: int, kinds: Sequence[Kind] = KINDS, phases: Sequence[Phase] = PHASES
) -> list[Fault]:
    """The faults of a seed: kinds in turn, each at all of its places before one comes again.

    Raises:
        ConfigError: no kind can strike in any of the phases.
    """
    rng = random.Random(seed)
    streams = []
    for kind in rng.sample(list(kinds), len(kinds)):
        own = list(places(kind, phases=tuple(phases)))
        if own:
            streams.append((kind, cycle(rng.sample(own, len(own)))))
    if not streams:
        raise ConfigError(
            f"no fault of kind {', '.join(kinds)} strikes in the phases {', '.join(phases)}; docs/chaos.md says which."
        )
    faults = []
    for number, (kind, stream) in enumerate(islice(cycle(streams), num_faults), start=1):
        role, phase = next(stream)
        faults.append(
            Fault(
                number=number,
                kind=kind,
                phase=phase,
                target=_target(role, rng),
                at_step=rng.randint(*AT_STEPS),
                seed=rng.randrange(2**31),
            )
        )
    return faults


def _target(role: Role, rng: random.Random) -> str:
    match role:
        case "supervisor":
            return role
        case "trainer":
            return "trainer-0"
        case "searcher":
            return f"searcher-{rng.randrange(NUM_SEARCHERS)}"

"""The kinds of fault, the phases of a run, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "kill", "stop", "slow", "raise", "nan-reward", "infinite-reward", "short-reward", "stuck-reward",
    "oversize-record", "torn-record", "corrupt-record", "failed-load", "wrong-weights", "full-shm", "full-disk",
    "clock-jump", "failing-engine", "stuck-engine",
]  # fmt: skip
Phase = Literal["loading", "filling", "running", "syncing", "checkpointing", "draining"]
Role = Literal["supervisor", "trainer", "searcher"]

KINDS: tuple[Kind, ...] = get_args(Kind)
PHASES: tuple[Phase, ...] = get_args(Phase)
NUM_SEARCHERS = 2

# Done by the campaign to a process or its memory. All others need the target's help, which is armed first; a full file
# system as well, where none may be mounted.
FROM_OUTSIDE: tuple[Kind, ...] = ("kill", "stop", "slow", "corrupt-record")

# While searchers generate and the trainer lives.
WORKING: tuple[Phase, ...] = ("filling", "running", "syncing", "checkpointing")

# Which process is struck in which phases.
PLACES: Mapping[Kind, Mapping[Role, tuple[Phase, ...]]] = {
    "kill": {"supervisor": PHASES, "trainer": PHASES, "searcher": PHASES},
    "stop": {"trainer": PHASES, "searcher": PHASES},
    "slow": {"trainer": PHASES, "searcher": PHASES},
    "raise": {"trainer": PHASES, "searcher": ("loading", *WORKING)},
    "nan-reward": {"searcher": WORKING},
    "infinite-reward": {"searcher": WORKING},
    "short-reward": {"searcher": WORKING},
    "stuck-reward": {"searcher": WORKING},
    "oversize-record": {"searcher": WORKING},
    "torn-record": {"searcher": WORKING},
    "corrupt-record": {"searcher": WORKING},
    "failed-load": {"searcher": ("syncing",)},
    "wrong-weights": {"searcher": ("syncing",)},
    "full-shm": {"trainer": ("loading", *WORKING)},
    "full-disk": {"trainer": PHASES},
    "clock-jump": {"supervisor": PHASES, "trainer": PHASES, "searcher": PHASES},
    "failing-engine": {"searcher": WORKING},
    "stuck-engine": {"searcher": WORKING},
}

_NOT_GENERATING = "loading: nothing is generated yet; draining: nothing is generated any more"
# Why the other phases are left out.
LEFT_OUT: Mapping[Kind, str] = {
    "raise": "a searcher in draining: its engine is not called any more",
    **dict.fromkeys(
        (
            "nan-reward",
            "infinite-reward",
            "short-reward",
            "stuck-reward",
            "oversize-record",
            "torn-record",
            "corrupt-record",
            "failing-engine",
            "stuck-engine",
        ),
        _NOT_GENERATING,
    ),
    "failed-load": "only a sync loads weights",
    "wrong-weights": "only a sync loads weights",
    "full-shm": "draining: nothing is written there any more",
    "stop": "the supervisor: its children leave when it has been silent for a minute",
    "slow": "the supervisor: it has no deadline of its own to miss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a schedule."""

    number: int
    """Place in the schedule, from 1."""
    kind: Kind
    phase: Phase
    target: str
    """`supervisor`, `trainer-0`, `searcher-1`."""
    at_step: int
    """Optimizer steps that must be done first, in the phases that come again and again."""
    seed: int
    """Of the run."""

    @property
    def role(self) -> str:
        """Of the target."""
        return self.target.partition("-")[0]

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.number:04d}-{self.kind}-{self.phase}-{self.target}"


def places(kind: Kind, *, phases: tuple[Phase, ...] = PHASES) -> Iterator[tuple[Role, Phase]]:
    """Where a kind can strike, in a fixed order."""
    for role, possible in PLACES[kind].items():
        for phase in phases:
            if phase in possible:
                yield role, phase

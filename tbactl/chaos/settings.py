"""The run of a case: two searchers and a trainer of twelve steps, in about three seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbactl.chaos.faults import NUM_SEARCHERS, Fault
from tbactl.config.sections import RunConfig

NUM_STEPS = 12
CHECKPOINT_PERIOD = 3
RING_BYTES = 65_536
HEARTBEAT_S = 1.5
# So long that a look from outside usually falls into each phase.
START_S, SYNC_S, SAVE_S = 0.3, 0.15, 0.3
# How long the phase in which the fault is to strike waits for that look: no progress that any limit below would miss.
HOLD_S = 3.0
# A reward that never returns, or an engine that finishes nothing, is noticed by its limit: the run must not be over
# before, nor a hold take so long.
BY_PROGRESS = ("stuck-reward", "stuck-engine")
STUCK_LIMIT_S, STUCK_HOLD_S, NUM_STUCK_STEPS = 1.5, 0.7, 3 * NUM_STEPS
# Only a process that is stopped is noticed by its heartbeat, and one that is slow must not be.
BY_HEARTBEAT = ("stop", "slow")


@dataclass(frozen=True, slots=True)
class CaseLayout:
    """Paths inside a case's directory."""

    root: Path

    @property
    def runs(self) -> Path:
        """Where the run directory is made."""
        return self.root / "runs"

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def fault(self) -> Path:
        return self.root / "fault.json"

    @property
    def armed(self) -> Path:
        """While it exists, the target strikes itself at the next chance, and removes it first."""
        return self.root / "armed"

    @property
    def struck(self) -> Path:
        """Written at the strike: the monotonic second."""
        return self.root / "struck"

    @property
    def seen(self) -> Path:
        """There when the phase of the fault was seen from outside: what is held in it may go on."""
        return self.root / "seen"

    @property
    def output(self) -> Path:
        """What the supervisor printed."""
        return self.root / "output.txt"

    def trace(self, process: str) -> Path:
        """What `books.py` reads."""
        return self.root / f"trace-{process}.txt"


def num_steps(fault: Fault) -> int:
    """Optimizer steps of a case's run."""
    return NUM_STUCK_STEPS if fault.kind in BY_PROGRESS else NUM_STEPS


def case_config(fault: Fault, *, layout: CaseLayout, heartbeat_s: float = HEARTBEAT_S) -> RunConfig:
    """The settings of a case's run."""
    is_stopped_at_the_end = (fault.kind, fault.phase) == ("stop", "draining")
    values: dict[str, Any] = {
        "name": "chaos",
        "seed": fault.seed,
        "runs_dir": str(layout.runs),
        "task": {"kind": "fake", "options": {"score_seconds": 0.02}},
        "policy": {"path": "fake"},
        "searchers": {
            "num_searchers": NUM_SEARCHERS,
            "engine": "fake",
            "engine_options": {"step_seconds": 0.004, "start_seconds": START_S},
            "num_completions": 4,
            "max_prompt_tokens": 32,
            "max_new_tokens": 8,
            "max_concurrent_groups": 4,
            "ring_capacity_bytes": RING_BYTES,
            "temperature": 1.0,
        },
        "trainer": {
            "kind": "fake",
            "max_steps": num_steps(fault),
            "prompts_per_step": 4,
            "completions_per_prompt": 4,
            "options": {"step_seconds": 0.08, "start_seconds": START_S},
        },
        "replay": {"initial_trajectories": 64},
        "sync": {"period": 2},
        "checkpoint": {"period": CHECKPOINT_PERIOD},
        "evaluation": {"num_prompts": 0},
        "logging": {"tensorboard": False},
        "supervision": {
            "start_timeout_s": 60.0,
            "heartbeat_timeout_s": heartbeat_s if fault.kind in BY_HEARTBEAT else 30.0,
            "progress_timeout_s": STUCK_LIMIT_S if fault.kind in BY_PROGRESS else 10.0,
            "acknowledge_timeout_s": 10.0,
            # A process that is stopped while the run drains is to be noticed by its heartbeat, not by the end.
            "stop_grace_s": heartbeat_s + 6.5 if is_stopped_at_the_end else 30.0,
            "restart_backoff_s": 0.05,
        },
    }
    return RunConfig.model_validate(values)


def resumed_config(config: RunConfig) -> RunConfig:
    """The same without the short limits by which a fault is noticed in time: a resume has none, on any machine."""
    limits = {"heartbeat_timeout_s": 30.0, "progress_timeout_s": 30.0}
    return config.model_copy(update={"supervision": config.supervision.model_copy(update=limits)})

"""trainer_state.json, a checkpoint's small part. The trainer writes it; searchers read where their prompts go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tbactl.config.layout import CheckpointLayout
from tbactl.errors import CheckpointError

LAYOUT_VERSION = 2


@dataclass(slots=True, kw_only=True)
class TrainerState:
    """What the trainer's loop needs to go on exactly, besides learner and replay buffer."""

    layout_version: int = LAYOUT_VERSION
    policy_version: int = 0
    """Optimizer steps done."""
    sampler_rng: dict[str, Any]
    """State of numpy's generator before the next batch is drawn."""
    stream_positions: list[int]
    """For each searcher, where its prompt stream goes on: every earlier prompt of it has arrived or was given up."""
    granted_groups: int = 0
    """Mode sync: groups that all searchers together were allowed to start, since the beginning of the run."""
    evaluate_version: int = 0
    """The last version that was to be evaluated."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The run's configuration as JSON: a checkpoint of another run is told by it."""
    training_s: float = 0.0
    """Seconds of training so far."""
    counters: dict[str, int] = field(default_factory=dict)
    """Running totals behind the metrics."""

    def count(self, **amounts: int) -> None:
        """Add to running totals."""
        for name, amount in amounts.items():
            self.counters[name] = self.total(name) + amount

    def total(self, name: str) -> int:
        """A running total; 0 when nothing was counted yet."""
        return self.counters.get(name, 0)


def write_trainer_state(checkpoint: CheckpointLayout, state: TrainerState) -> None:
    """Write it into a checkpoint that is being made."""
    checkpoint.trainer_state.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))


def read_trainer_state(checkpoint: Path) -> TrainerState:
    """The state in a checkpoint.

    Raises:
        CheckpointError: it is missing, damaged, or of another layout.
    """
    path = CheckpointLayout(checkpoint).trainer_state
    try:
        document = msgspec.json.decode(path.read_bytes())
        if document.get("layout_version") != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path}: trainer state of layout {document.get('layout_version')}; this tbactl reads "
                f"{LAYOUT_VERSION}. Resume with the version that wrote it."
            )
        return msgspec.convert(document, TrainerState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; use an earlier checkpoint.") from error

"""trainer_state.json: the small part of a checkpoint. The trainer writes it; a searcher reads where its prompts go on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tbactl.config.layout import CheckpointLayout
from tbactl.errors import CheckpointError

LAYOUT_VERSION = 1
# A prompt that a searcher skips leaves a gap that never closes; so many positions after it, it is given up.
MAX_BEYOND_GAP = 4096


@dataclass(slots=True, kw_only=True)
class StreamPosition:
    """Which prompts of one searcher's stream have arrived at the trainer.

    Completions finish in any order, so a prompt may be missing although later ones have arrived. A resumed searcher
    starts at `next_position` and leaves out those in `beyond`: no prompt is skipped, none comes twice.
    """

    next_position: int = 0
    """The first position that has not arrived."""
    beyond: set[int] = field(default_factory=set)
    """Later positions that have."""

    def arrive(self, position: int) -> None:
        """Note a group."""
        if position >= self.next_position:
            self.beyond.add(position)
        if len(self.beyond) > MAX_BEYOND_GAP:
            self.next_position = min(self.beyond)
        while self.next_position in self.beyond:
            self.beyond.remove(self.next_position)
            self.next_position += 1


@dataclass(slots=True, kw_only=True)
class TrainerState:
    """What the trainer's loop needs to go on exactly, besides learner and replay buffer."""

    layout_version: int = LAYOUT_VERSION
    policy_version: int = 0
    sampler_rng: dict[str, Any]
    """State of numpy's generator before the next batch is drawn."""
    streams: list[StreamPosition]
    """One for each searcher."""
    granted_groups: int = 0
    """Mode sync: groups the searchers were allowed to start."""
    evaluate_version: int = 0
    reference: str = ""
    """Where the reference policy comes from: the run's initial policy."""
    training_s: float = 0.0
    """Seconds of training so far."""
    counters: dict[str, int] = field(default_factory=dict)
    """Running totals behind the metrics."""


def write_trainer_state(checkpoint: CheckpointLayout, state: TrainerState) -> None:
    """Write it into a checkpoint that is being made."""
    document = dataclasses.asdict(state)
    document["streams"] = [
        {"next_position": stream.next_position, "beyond": sorted(stream.beyond)} for stream in state.streams
    ]
    checkpoint.trainer_state.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


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
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; use an earlier checkpoint.") from error

"""The replay buffer in a checkpoint, for looking at: also while its run goes on and removes old checkpoints."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from tbactl.checkpoints.manifest import verify
from tbactl.checkpoints.store import steps_of
from tbactl.checkpoints.trainer_state import TrainerState, read_trainer_state
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.errors import CheckpointError
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import load_buffer

logger = logging.getLogger(__name__)

# A run that writes faster than this reads would be a strange one.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBuffer:
    """What `tbactl buffer` looks at."""

    checkpoint: Path
    policy_version: int
    """Of the trainer when the checkpoint was written."""
    state: TrainerState
    buffer: ReplayBuffer


def read_saved_buffer(path: Path) -> SavedBuffer:
    """The buffer of a checkpoint, or of a run's newest checkpoint that is not damaged.

    Args:
        path: a checkpoint or a run directory.

    Raises:
        CheckpointError: there is none that can be used.
    """
    if CheckpointLayout(path).manifest.is_file():
        return _read(path)
    problems: list[str] = []
    for attempt in range(_ATTEMPTS):
        problems.clear()
        candidates = steps_of(RunLayout(path).checkpoints)
        for checkpoint in reversed(candidates):
            try:
                return _read(checkpoint)
            except CheckpointError as error:
                problems.append(str(error))
        if steps_of(RunLayout(path).checkpoints) == candidates:
            break
        logger.info("attempt=%d the run has written a checkpoint meanwhile", attempt + 1)
    listing = "\n".join(problems) or "it has none yet; the first comes after checkpoint.period optimizer steps."
    raise CheckpointError(f"{path}: no checkpoint can be used: {listing}")


def _read(checkpoint: Path) -> SavedBuffer:
    layout = CheckpointLayout(checkpoint)
    manifest = verify(checkpoint, part=layout.replay.name)
    return SavedBuffer(
        checkpoint=checkpoint,
        policy_version=manifest.step,
        state=read_trainer_state(checkpoint),
        # As it was saved: nothing leaves for want of room.
        buffer=load_buffer(layout.replay, capacity=sys.maxsize, capacity_per_prompt=sys.maxsize),
    )

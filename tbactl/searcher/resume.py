"""Where a searcher begins: at the start, after a resume of the run, or after its own crash."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tbactl.checkpoints.store import usable_checkpoint
from tbactl.checkpoints.trainer_state import read_trainer_state
from tbactl.config.layout import ProcessConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """What the checkpoint says that a run was resumed from; all 0 for a new run."""

    step: int = 0
    """Optimizer steps done: the policy version that the trainer will publish first."""
    position: int = 0
    """Where this searcher's prompt stream goes on."""


def kept_point(config: ProcessConfig) -> Path:
    """Where a searcher's point is kept in shared memory."""
    return config.shm.root / f"resume-{config.index}.json"


def resume_point(config: ProcessConfig) -> ResumePoint:
    """The point that this run was resumed from, by the checkpoint that the trainer will find usable too.

    It is kept in shared memory: when a searcher is restarted later, the checkpoint may be gone.

    Raises:
        CheckpointError: no checkpoint can be used.
    """
    if config.resume_checkpoint is None:
        return ResumePoint()
    kept = kept_point(config)
    try:
        return msgspec.json.decode(kept.read_bytes(), type=ResumePoint)
    except FileNotFoundError:
        state = read_trainer_state(usable_checkpoint(config.resume_checkpoint))
    positions = state.stream_positions
    # Dealt to another number of searchers, only the lowest position leaves nothing out.
    own = positions[config.index] if len(positions) == config.run.searchers.num_searchers else min(positions, default=0)
    point = ResumePoint(step=state.policy_version, position=own)
    partial = kept.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(point))
    os.replace(partial, kept)
    return point

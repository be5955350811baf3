"""Where a searcher begins: at the start, after a resume of the run, or after its own crash."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tbactl.checkpoints.manifest import verify
from tbactl.checkpoints.trainer_state import read_trainer_state
from tbactl.config.layout import CheckpointLayout, ProcessConfig
from tbactl.errors import CheckpointError


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
    """The point that this run was resumed from, by the checkpoint that the supervisor has chosen for all.

    Only the part that is read is verified: the supervisor and the trainer verify all of it. The point is kept in shared
    memory: when a searcher is restarted later, the checkpoint may be gone.

    Raises:
        CheckpointError: the checkpoint's state is missing, damaged, or of another number of searchers.
    """
    if config.resume_checkpoint is None:
        return ResumePoint()
    kept = kept_point(config)
    try:
        return msgspec.json.decode(kept.read_bytes(), type=ResumePoint)
    except FileNotFoundError:
        point = _read(config.resume_checkpoint, config)
    partial = kept.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(point))
    os.replace(partial, kept)
    return point


def _read(checkpoint: Path, config: ProcessConfig) -> ResumePoint:
    state_file = CheckpointLayout(checkpoint).trainer_state
    verify(checkpoint, part=state_file.name)
    state = read_trainer_state(checkpoint)
    num_searchers = config.run.searchers.num_searchers
    if len(state.stream_positions) != num_searchers:
        raise CheckpointError(
            f"{state_file} has the prompt streams of {len(state.stream_positions)} searchers, but this run has "
            f"{num_searchers}; use an earlier checkpoint, or start a new run."
        )
    return ResumePoint(step=state.policy_version, position=state.stream_positions[config.index])

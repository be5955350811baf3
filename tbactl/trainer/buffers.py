"""The replay buffer as the configuration describes it, empty or from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from tbactl.config.sections import RunConfig
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine, Likeness
from tbactl.replay.snapshot import load_buffer


def new_buffer(run: RunConfig) -> ReplayBuffer:
    """The buffer of a run that begins.

    Raises:
        ConfigError: a package that near duplicates need is missing.
    """
    replay = run.replay
    return ReplayBuffer(
        capacity=replay.capacity,
        capacity_per_prompt=replay.capacity_per_prompt,
        eviction=replay.eviction,
        likeness=_likeness(run),
    )


def saved_buffer(run: RunConfig, directory: Path) -> ReplayBuffer:
    """The buffer of a checkpoint.

    Raises:
        CheckpointError: a file is missing, damaged, or of another layout.
        ConfigError: a package that near duplicates need is missing.
    """
    replay = run.replay
    return load_buffer(
        directory,
        capacity=replay.capacity,
        capacity_per_prompt=replay.capacity_per_prompt,
        eviction=replay.eviction,
        likeness=_likeness(run),
    )


def _likeness(run: RunConfig) -> Likeness | None:
    replay = run.replay
    if replay.near_duplicates == "keep" or run.mode == "sync":
        return None
    if replay.near_duplicates == "edit-distance":
        return EditDistance(tolerance=replay.near_duplicate_tolerance)
    # Torch and transformers, for this case only: the trainer's loop does without.
    from tbactl.engines.sentence_encoder import SentenceEncoder

    assert replay.embedder is not None  # a rule
    return EmbeddingCosine(SentenceEncoder(replay.embedder), tolerance=replay.near_duplicate_tolerance)

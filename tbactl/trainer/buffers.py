"""The replay buffer as the configuration describes it, empty or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tbactl.config.sections import RunConfig
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine, Likeness
from tbactl.replay.snapshot import load_buffer


def new_buffer(run: RunConfig, *, note_progress: Callable[[], object] = lambda: None) -> ReplayBuffer:
    """The buffer of a run that begins.

    Args:
        run: its capacities, and what counts as almost the same.
        note_progress: called now and then in an insertion that takes long.

    Raises:
        ConfigError: a package that near duplicates need is missing.
    """
    replay = run.replay
    return ReplayBuffer(
        capacity=replay.capacity,
        capacity_per_prompt=replay.capacity_per_prompt,
        eviction=replay.eviction,
        likeness=_likeness(run, note_progress=note_progress),
        equal_rewards_last=replay.equal_rewards == "last",
    )


def saved_buffer(
    run: RunConfig, directory: Path, *, note_progress: Callable[[], object] = lambda: None
) -> ReplayBuffer:
    """The buffer of a checkpoint.

    Args:
        run: as for `new_buffer`.
        directory: with the snapshot.
        note_progress: as for `new_buffer`.

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
        likeness=_likeness(run, note_progress=note_progress),
        equal_rewards_last=replay.equal_rewards == "last",
    )


def _likeness(run: RunConfig, *, note_progress: Callable[[], object]) -> Likeness | None:
    replay = run.replay
    if replay.near_duplicates == "keep" or run.mode == "sync":
        return None
    if replay.near_duplicates == "edit-distance":
        return EditDistance(tolerance=replay.near_duplicate_tolerance)
    # Torch and transformers, for this case only: the trainer's loop does without.
    from tbactl.engines.sentence_encoder import SentenceEncoder

    assert replay.embedder is not None  # a rule
    encoder = SentenceEncoder(replay.embedder)
    return EmbeddingCosine(encoder, tolerance=replay.near_duplicate_tolerance, note_progress=note_progress)

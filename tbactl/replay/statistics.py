"""What the dashboard and the metrics show of the replay buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.counters import BufferCounters

NUM_REWARD_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStatistics:
    """The make-up of a buffer at one policy version."""

    num_trajectories: int
    num_prompts: int
    num_eligible_prompts: int
    versions: dict[int, int]
    """Trajectories of each policy version, oldest first."""
    staleness: dict[int, int]
    """Trajectories of each age in optimizer steps, youngest first."""
    reward_edges: tuple[float, ...]
    """11 edges of 10 equal bins from the lowest to the highest reward; empty when the buffer is."""
    reward_counts: tuple[int, ...]
    """Trajectories in each bin."""
    samples_per_insert: float
    """Draws so far for each distinct trajectory inserted."""
    counters: BufferCounters
    """Totals since the start of the run."""


def buffer_statistics(buffer: ReplayBuffer, *, policy_version: int) -> BufferStatistics:
    """Describe a buffer; O(trajectories) for the rewards, some ten milliseconds for a million."""
    versions = buffer.versions
    staleness: dict[int, int] = {}
    for version in sorted(versions, reverse=True):
        # After a resume from an earlier checkpoint, what waits in a ring may come from versions that are undone.
        age = max(policy_version - version, 0)
        staleness[age] = staleness.get(age, 0) + versions[version]
    edges, counts = _reward_histogram(buffer)
    return BufferStatistics(
        num_trajectories=len(buffer),
        num_prompts=len(buffer.prompts),
        num_eligible_prompts=buffer.num_eligible_prompts,
        versions=versions,
        staleness=staleness,
        reward_edges=edges,
        reward_counts=counts,
        samples_per_insert=buffer.samples_per_insert,
        counters=buffer.counters.copy(),
    )


def _reward_histogram(buffer: ReplayBuffer) -> tuple[tuple[float, ...], tuple[int, ...]]:
    rewards = buffer.rewards
    if not len(rewards):
        return (), ()
    counts, edges = np.histogram(rewards, bins=NUM_REWARD_BINS)
    return tuple(edges.tolist()), tuple(counts.tolist())

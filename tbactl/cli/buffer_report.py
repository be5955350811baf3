"""What `tbactl buffer show` says, as plain values."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from tbactl.checkpoints.saved_buffer import SavedBuffer
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.statistics import BufferStatistics, buffer_statistics
from tbactl.replay.stored_prompt import StoredTrajectory

NUM_AGE_BINS = 10


def buffer_report(saved: SavedBuffer, *, num_examples: int) -> dict[str, Any]:
    """A JSON document about a buffer.

    Args:
        saved: the buffer.
        num_examples: trajectories of the highest, and of the lowest, reward. Their texts are as sampled, not escaped.
    """
    statistics = buffer_statistics(saved.buffer, policy_version=saved.policy_version)
    return {
        "checkpoint": str(saved.checkpoint),
        "policy_version": saved.policy_version,
        "counts": _counts(saved, statistics),
        "samples_per_insert": saved.state.total("trajectories_trained")
        / max(1, saved.state.total("trajectories_received")),
        "versions": {str(version): number for version, number in statistics.versions.items()},
        "ages": _age_bins(statistics.staleness),
        "rewards": [
            {"lowest": low, "highest": high, "num_trajectories": number}
            for low, high, number in zip(
                statistics.reward_edges[:-1], statistics.reward_edges[1:], statistics.reward_counts, strict=True
            )
        ],
        "highest": _examples(saved.buffer, num_examples, is_highest=True),
        "lowest": _examples(saved.buffer, num_examples, is_highest=False),
    }


def _counts(saved: SavedBuffer, statistics: BufferStatistics) -> dict[str, int]:
    replay = saved.state.settings.get("replay", {})
    counters = statistics.counters
    return {
        "num_held": statistics.num_trajectories,
        "capacity": replay.get("capacity", 0),
        "num_prompts": statistics.num_prompts,
        "num_prompts_that_can_be_drawn": statistics.num_eligible_prompts,
        "num_received": saved.state.total("trajectories_received"),
        "num_trained": saved.state.total("trajectories_trained"),
        "num_duplicates": counters.num_duplicates,
        "num_near_duplicates": counters.num_near_duplicates,
        "num_evicted": counters.num_evicted,
        "num_expired": counters.num_expired,
    }


def _age_bins(staleness: dict[int, int]) -> list[dict[str, int]]:
    """At most ten ranges of one width, in optimizer steps; empty ones are left out."""
    if not staleness:
        return []
    width = -(-(max(staleness) + 1) // NUM_AGE_BINS)
    bins: dict[int, int] = {}
    for age, number in staleness.items():
        bins[age // width] = bins.get(age // width, 0) + number
    return [
        {"youngest": index * width, "oldest": (index + 1) * width - 1, "num_trajectories": number}
        for index, number in sorted(bins.items())
    ]


def _examples(buffer: ReplayBuffer, num_examples: int, *, is_highest: bool) -> list[dict[str, Any]]:
    choose = heapq.nlargest if is_highest else heapq.nsmallest
    chosen: Iterator[StoredTrajectory] = iter(choose(num_examples, buffer.trajectories(), key=lambda t: t.reward))
    return [
        {
            "reward": stored.reward,
            "version": stored.version,
            "num_draws": stored.num_draws,
            "prompt_id": stored.prompt_id,
            "prompt": buffer.prompts[stored.prompt_id].prompt_text,
            "completion": stored.to_trajectory().completion.text,
        }
        for stored in chosen
    ]

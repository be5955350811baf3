"""Metrics of a step that do not need the model: what was trained on, and how long everything took."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.replay.buffer import ReplayBuffer
from tbactl.types import TrajectoryGroup

# Steps over which the pace is averaged.
PACE_STEPS = 10


def batch_metrics(groups: Sequence[TrajectoryGroup], *, policy_version: int) -> dict[str, float]:
    """Lengths and staleness of a batch: optimizer steps since the version that each completion counts as."""
    completions = [trajectory.completion for group in groups for trajectory in group.trajectories]
    staleness = np.array([max(0, policy_version - completion.version) for completion in completions])
    lengths = np.array([len(completion.token_ids) for completion in completions])
    return {
        "replay/staleness/mean": float(staleness.mean()),
        "replay/staleness/p50": float(np.percentile(staleness, 50)),
        "replay/staleness/p95": float(np.percentile(staleness, 95)),
        "replay/staleness/max": float(staleness.max()),
        "replay/on_policy/share": float((staleness == 0).mean()),
        "objective/completion_tokens/mean": float(lengths.mean()),
        "objective/completion_tokens/p95": float(np.percentile(lengths, 95)),
        "objective/truncated/share": float(np.mean([c.finish_reason == "length" for c in completions])),
        "trainer/groups/sum": float(len(groups)),
        "trainer/trajectories/sum": float(len(completions)),
        "trainer/completion_tokens/sum": float(lengths.sum()),
    }


def buffer_metrics(buffer: ReplayBuffer, *, state: TrainerState, num_damaged: int) -> dict[str, float]:
    """Totals of intake and buffer."""
    counters = buffer.counters
    num_received = state.total("trajectories_received")
    return {
        "replay/trajectories/value": float(len(buffer)),
        "replay/prompts/value": float(len(buffer.prompts)),
        "replay/eligible_prompts/value": float(buffer.num_eligible_prompts),
        "replay/samples_per_insert/value": state.total("trajectories_trained") / max(1, num_received),
        "replay/duplicates/total": float(counters.num_duplicates),
        "replay/near_duplicates/total": float(counters.num_near_duplicates),
        "replay/evicted/total": float(counters.num_evicted),
        "replay/expired/total": float(counters.num_expired),
        "intake/groups/total": float(state.total("groups_received")),
        "intake/trajectories/total": float(num_received),
        "intake/failed_completions/total": float(state.total("completions_failed")),
        "intake/damaged_records/total": float(num_damaged),
    }


class Pace:
    """How long steps take, and how much of that is waiting."""

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=PACE_STEPS)

    def metrics(self, seconds: Mapping[str, float], *, step_s: float) -> dict[str, float]:
        """Durations of one step by part; `step_s` is the whole, including what no part covers."""
        self._recent_s.append(step_s)
        return {
            **{f"trainer/{name}_s/sum": value for name, value in seconds.items()},
            "trainer/step_s/sum": step_s,
            "trainer/steps_per_s/mean": len(self._recent_s) / max(sum(self._recent_s), 1e-9),
            "trainer/idle/share": min(1.0, seconds.get("wait", 0.0) / max(step_s, 1e-9)),
        }

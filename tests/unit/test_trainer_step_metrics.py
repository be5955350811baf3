from __future__ import annotations

from dataclasses import replace

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.statistics import buffer_statistics
from tbactl.trainer.step_metrics import batch_metrics
from tests.support.replay_groups import make_group


def test_staleness_is_counted_from_the_oldest_token_like_in_the_buffer():
    group = make_group(0, [1, 2], version=1)
    spanning = replace(
        group,
        trajectories=tuple(
            replace(trajectory, completion=replace(trajectory.completion, last_version=4))
            for trajectory in group.trajectories
        ),
    )
    buffer = ReplayBuffer(capacity=10, capacity_per_prompt=10)
    buffer.insert(spanning)
    metrics = batch_metrics([spanning], policy_version=4)
    assert metrics["replay/staleness/max"] == metrics["replay/staleness/mean"] == 3
    assert metrics["replay/on_policy/share"] == 0
    assert buffer_statistics(buffer, policy_version=4).staleness == {3: 2}

import dataclasses
import math

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.counters import InsertReport
from tbactl.replay.duplicates import DuplicateIndex
from tbactl.replay.holdings import Eviction
from tbactl.replay.statistics import buffer_statistics
from tests.support.replay_groups import held_tokens, make_group, slots_at


def make_buffer(*, capacity: int = 100, capacity_per_prompt: int = 10, eviction: Eviction = "oldest") -> ReplayBuffer:
    return ReplayBuffer(capacity=capacity, capacity_per_prompt=capacity_per_prompt, eviction=eviction)


def test_insert_reports_new_and_duplicates():
    buffer = make_buffer()
    assert buffer.insert(make_group(1, [5, 6, 5])) == InsertReport(num_new=2, num_duplicates=1, num_evicted=0)
    assert buffer.insert(make_group(1, [6, 7])) == InsertReport(num_new=1, num_duplicates=1, num_evicted=0)
    assert len(buffer) == 3


def test_same_tokens_under_two_prompts_are_two_trajectories():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6]))
    assert buffer.insert(make_group(2, [5, 6])).num_new == 2
    assert len(buffer) == 4


def test_newest_copy_stays_with_its_version_logprobs_reward_and_uid():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6], version=1))
    newer = make_group(1, [5], version=4, rewards=[0.75])
    buffer.insert(newer)
    assert buffer.versions == {1: 1, 4: 1}
    assert buffer.prompts[1].trajectories[-1].to_trajectory() == newer.trajectories[0]
    assert sorted(buffer.rewards) == [0.0, 0.75]


def test_late_copy_of_an_older_version_does_not_replace_the_newer():
    buffer = make_buffer()
    newer = make_group(1, [5, 6], version=4)
    buffer.insert(newer)
    assert buffer.insert(make_group(1, [5], version=1)) == InsertReport(num_new=0, num_duplicates=1, num_evicted=0)
    assert buffer.versions == {4: 2}
    assert buffer.prompts[1].trajectories[0].to_trajectory() == newer.trajectories[0]


def test_number_of_draws_survives_a_newer_copy():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6]))
    buffer.draw(1, slots_at(buffer, 1, [0, 0, 1]))
    buffer.insert(make_group(1, [5], version=1))
    assert [(stored.num_draws, stored.version) for stored in buffer.prompts[1].trajectories] == [(1, 0), (2, 1)]


def test_full_prompt_evicts_its_oldest_by_version_then_insertion():
    buffer = make_buffer(capacity_per_prompt=3)
    buffer.insert(make_group(1, [10, 11], version=5))
    buffer.insert(make_group(1, [20], version=3))
    assert buffer.insert(make_group(1, [30, 31], version=5)).num_evicted == 2
    assert held_tokens(buffer, 1) == [11, 30, 31]


def test_full_buffer_evicts_the_oldest_of_all_prompts():
    buffer = make_buffer(capacity=4)
    buffer.insert(make_group(1, [10, 11], version=2))
    buffer.insert(make_group(2, [20, 21], version=1))
    buffer.insert(make_group(3, [30, 31, 32], version=3))
    assert sorted(buffer.prompts) == [1, 3]
    assert held_tokens(buffer, 1) == [11]
    assert buffer.counters.num_evicted == 3


def test_full_prompt_evicts_its_lowest_rewards_and_of_equal_ones_the_oldest():
    buffer = make_buffer(capacity_per_prompt=3, eviction="lowest-reward")
    buffer.insert(make_group(1, [10, 11, 12], version=5, rewards=[0.5, 0.0, 0.0]))
    assert buffer.insert(make_group(1, [20, 21], version=3, rewards=[0.0, 1.0])).num_evicted == 2
    # 20 is of the oldest version, then 11 was inserted before 12.
    assert held_tokens(buffer, 1) == [21, 10, 12]


def test_full_buffer_evicts_the_lowest_rewards_of_all_prompts():
    buffer = make_buffer(capacity=4, eviction="lowest-reward")
    buffer.insert(make_group(1, [10, 11], version=2, rewards=[0.2, -3.0]))
    buffer.insert(make_group(2, [20, 21], version=1, rewards=[0.3, 0.4]))
    assert buffer.insert(make_group(3, [30, 31], version=0, rewards=[0.9, 0.2])).num_evicted == 2
    assert [held_tokens(buffer, prompt_id) for prompt_id in (1, 2, 3)] == [[10], [20, 21], [30]]


def test_what_arrives_with_the_lowest_reward_of_a_full_prompt_leaves_at_once():
    buffer = make_buffer(capacity_per_prompt=2, eviction="lowest-reward")
    buffer.insert(make_group(1, [10, 11], rewards=[1.0, 1.0]))
    assert buffer.insert(make_group(1, [12], rewards=[0.5])).num_evicted == 1
    assert held_tokens(buffer, 1) == [10, 11]
    assert buffer.prompts[1].num_fresh == 2


def test_expiry_is_by_version_whatever_leaves_first_otherwise():
    buffer = make_buffer(eviction="lowest-reward")
    buffer.insert(make_group(1, [10, 11], version=0, rewards=[5.0, 5.0]))
    buffer.insert(make_group(1, [12, 13], version=3, rewards=[-5.0, -5.0]))
    assert buffer.expire(oldest_version=1) == 2
    assert held_tokens(buffer, 1) == [12, 13]


def residuals_of(buffer: ReplayBuffer, prompt_id: int) -> list[float | None]:
    return [stored.residual for stored in buffer.prompts[prompt_id].trajectories]


def test_residuals_are_noted_for_the_last_batch_only():
    buffer = make_buffer()
    group = make_group(1, [5, 6, 7])
    buffer.insert(group)
    buffer.begin_batch()
    drawn = buffer.draw(1, slots_at(buffer, 1, [0, 0, 2]))
    assert residuals_of(buffer, 1) == [None, None, None]
    buffer.note_residuals(
        {trajectory.uid: -0.25 for trajectory in drawn.trajectories} | {group.trajectories[1].uid: 9.0}
    )
    assert residuals_of(buffer, 1) == [-0.25, None, -0.25]
    buffer.begin_batch()
    buffer.note_residuals({group.trajectories[0].uid: 1.0})
    assert residuals_of(buffer, 1) == [-0.25, None, -0.25]


def test_residuals_of_what_has_left_are_passed_over():
    buffer = make_buffer(capacity_per_prompt=2)
    buffer.insert(make_group(1, [5, 6]))
    buffer.begin_batch()
    drawn = buffer.draw(1, slots_at(buffer, 1, [0, 1]))
    buffer.insert(make_group(1, [7], version=1))
    buffer.note_residuals({trajectory.uid: 0.5 for trajectory in drawn.trajectories})
    assert held_tokens(buffer, 1) == [6, 7]
    assert residuals_of(buffer, 1) == [0.5, None]
    buffer.expire(oldest_version=2)
    buffer.note_residuals({trajectory.uid: 0.5 for trajectory in drawn.trajectories})
    assert len(buffer) == 0


def test_residual_survives_a_newer_copy():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6]))
    buffer.begin_batch()
    drawn = buffer.draw(1, slots_at(buffer, 1, [0]))
    buffer.note_residuals({drawn.trajectories[0].uid: 0.5})
    buffer.insert(make_group(1, [5], version=1, rewards=[1.0]))
    assert [(stored.version, stored.residual) for stored in buffer.prompts[1].trajectories] == [(0, None), (1, 0.5)]


@pytest.mark.fault("I-88")
@pytest.mark.parametrize(
    "logprobs",
    [
        (-0.5, 0.0, -1.25),
        (-0.1, -0.2, -0.3),
        (-0.0, -1e-320, -1e300),
        (-3.4028234663852886e38, -(2.0**-149), -1.0),
    ],
    ids=["float32", "float64", "range", "limits of float32"],
)
def test_what_is_drawn_equals_what_was_inserted_bit_by_bit(logprobs: tuple[float, ...]):
    [one, two] = make_group(1, [5, 6]).trajectories
    completion = dataclasses.replace(
        one.completion,
        token_ids=(0, 2**31 - 1, 17),
        logprobs=logprobs,
        text="gr\u00fc\u00dfe \u4e16\u754c \U0001f600\x00\u2028",
        finish_reason="length",
        first_version=3,
        last_version=7,
    )
    group = dataclasses.replace(
        make_group(1, [5, 6]), trajectories=(dataclasses.replace(one, completion=completion), two)
    )
    buffer = make_buffer()
    buffer.insert(group)
    drawn = buffer.draw(1, slots_at(buffer, 1, [1, 0]))
    assert drawn == group
    assert [x.hex() for x in drawn.trajectories[0].completion.logprobs] == [x.hex() for x in logprobs]


def test_trajectories_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DuplicateIndex, "_hash", staticmethod(lambda prompt_id, token_bytes: 7))
    buffer = make_buffer(capacity_per_prompt=3)
    assert buffer.insert(make_group(1, [5, 6, 5, 7])).num_duplicates == 1
    assert buffer.insert(make_group(2, [5, 6])).num_new == 2
    assert buffer.insert(make_group(1, [8, 7], version=1)) == InsertReport(num_new=1, num_duplicates=1, num_evicted=1)
    assert held_tokens(buffer, 1) == [5, 8, 7]


def test_prompt_without_trajectories_disappears_everywhere():
    buffer = make_buffer(capacity=2)
    buffer.insert(make_group(1, [10, 11], version=0))
    buffer.insert(make_group(2, [20, 21], version=1))
    assert list(buffer.prompts) == [2]
    assert buffer.urn.items == [2]
    assert buffer.recency.dump() == [(True, 1, [2])]


def test_group_in_which_all_failed_leaves_no_prompt():
    buffer = make_buffer()
    assert buffer.insert(make_group(1, [])) == InsertReport(num_new=0, num_duplicates=0, num_evicted=0)
    assert buffer.prompts == {}


def test_prompt_is_eligible_only_with_two_distinct_trajectories():
    buffer = make_buffer()
    buffer.insert(make_group(1, [10, 10, 10]))
    assert buffer.num_eligible_prompts == 0
    buffer.insert(make_group(1, [11]))
    assert buffer.num_eligible_prompts == 1


def test_expire_removes_older_versions_only():
    buffer = make_buffer()
    for version in range(5):
        buffer.insert(make_group(version // 2, [10 * version, 10 * version + 1], version=version))
    assert buffer.expire(oldest_version=3) == 6
    assert buffer.versions == {3: 2, 4: 2}
    assert sorted(buffer.prompts) == [1, 2]
    assert buffer.counters.num_expired == 6
    assert buffer.expire(oldest_version=100) == 4
    assert buffer.expire(oldest_version=100) == 0


def test_version_of_a_trajectory_is_that_of_its_oldest_token():
    buffer = make_buffer()
    group = make_group(1, [5, 6], version=2)
    spanning = dataclasses.replace(
        group.trajectories[0], completion=dataclasses.replace(group.trajectories[0].completion, last_version=7)
    )
    buffer.insert(dataclasses.replace(group, trajectories=(spanning, group.trajectories[1])))
    assert buffer.versions == {2: 2}
    assert buffer.prompts[1].trajectories[0].to_trajectory() == spanning


@pytest.mark.fault("I-88")
def test_drawn_group_equals_what_was_inserted_all_fields_together():
    buffer = make_buffer()
    group = make_group(1, [5, 6, 7], version=3, rewards=[0.1, 0.2, 0.3])
    buffer.insert(group)
    assert buffer.draw(1, slots_at(buffer, 1, [0, 1, 2])) == group


@pytest.mark.fault("I-48")
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_refused_and_changes_nothing(reward: float):
    buffer = make_buffer()
    with pytest.raises(TaskError, match="must be finite"):
        buffer.insert(make_group(1, [5, 6], rewards=[0.0, reward]))
    assert len(buffer) == 0
    assert buffer.prompts == {}


def test_one_id_for_two_prompts_is_refused():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6]))
    other = dataclasses.replace(make_group(1, [7, 8]), prompt_token_ids=(99,), prompt_text="another")
    with pytest.raises(TaskError, match="prompt id 1 stands for two prompts: 'prompt 1' and 'another'"):
        buffer.insert(other)
    assert len(buffer) == 2


def test_capacities_too_small_for_a_group_are_both_named():
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(capacity=1, capacity_per_prompt=0)
    assert len(caught.value.problems) == 2


def test_samples_per_insert_counts_draws_over_distinct_trajectories():
    buffer = make_buffer()
    assert buffer.samples_per_insert == 0.0
    buffer.insert(make_group(1, [5, 6, 6, 7, 8]))
    buffer.draw(1, slots_at(buffer, 1, [0, 1, 2, 3]))
    buffer.draw(1, slots_at(buffer, 1, [0, 0]))
    assert buffer.samples_per_insert == 6 / 4


def test_statistics_describe_versions_ages_and_rewards():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6, 7], version=1, rewards=[0.0, 1.0, 1.0]))
    buffer.insert(make_group(2, [5], version=4, rewards=[0.55]))
    statistics = buffer_statistics(buffer, policy_version=5)
    assert (statistics.num_trajectories, statistics.num_prompts, statistics.num_eligible_prompts) == (4, 2, 1)
    assert statistics.versions == {1: 3, 4: 1}
    assert statistics.staleness == {1: 1, 4: 3}
    assert statistics.reward_counts == (1, 0, 0, 0, 0, 1, 0, 0, 0, 2)
    assert statistics.reward_edges == pytest.approx([index / 10 for index in range(11)])
    assert statistics.counters.num_new == 4


def test_statistics_of_an_empty_buffer_and_of_equal_rewards_are_defined():
    buffer = make_buffer()
    assert buffer_statistics(buffer, policy_version=0).reward_counts == ()
    buffer.insert(make_group(1, [5, 6], rewards=[-2.0, -2.0]))
    assert sum(buffer_statistics(buffer, policy_version=0).reward_counts) == 2


def test_staleness_of_versions_undone_by_a_resume_is_zero():
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 6], version=9))
    buffer.insert(make_group(1, [7], version=4))
    assert buffer_statistics(buffer, policy_version=4).staleness == {0: 3}

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from tbactl import registry
from tbactl.config.sections import ReplaySection
from tbactl.replay import stored_prompt
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.samplers import MixtureSampler, Prioritization
from tbactl.replay.snapshot import save_buffer
from tbactl.replay.weighting import choose_weighted
from tbactl.trainer.batches import replay_at
from tbactl.types import TrajectoryGroup
from tests.support.replay_groups import make_group, tokens_of

# Values that a chi-square variable of so many degrees of freedom exceeds once in 10,000.
CRITICAL_CHI_SQUARE = {3: 21.11, 5: 25.74, 9: 33.72}

RECENT = MixtureSampler(on_policy_fraction=1.0)
ANY = MixtureSampler(on_policy_fraction=0.0)


def make_buffer(*, num_prompts: int = 0, version: int = 0) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity=10_000, capacity_per_prompt=100)
    for prompt_id in range(num_prompts):
        buffer.insert(make_group(prompt_id, [0, 1, 2, 3], version=version))
    return buffer


def draw(
    sampler: MixtureSampler, buffer: ReplayBuffer, num_prompts: int = 1, *, k: int = 2, seed: int = 0, version: int = 0
) -> list[TrajectoryGroup]:
    rng = np.random.default_rng(seed)
    return sampler.select(buffer, num_prompts=num_prompts, num_per_prompt=k, policy_version=version, rng=rng)


def prompts_of(groups: list[TrajectoryGroup]) -> list[int]:
    return [group.prompt_id for group in groups]


def chi_square(observed: Counter, expected: dict) -> float:
    total = sum(observed.values())
    assert set(observed) <= set(expected)
    return sum((observed[key] - total * share) ** 2 / (total * share) for key, share in expected.items())


# --- recency ---------------------------------------------------------------------------------------------------------


def test_recency_draws_the_newest_version_first():
    buffer = make_buffer()
    for version in (3, 1, 2):
        for number in range(4):
            buffer.insert(make_group(10 * version + number, [0, 1], version=version))
    assert set(prompts_of(draw(RECENT, buffer, 4))) == {30, 31, 32, 33}


def test_recency_never_repeats_a_prompt_until_all_fresh_ones_are_used():
    buffer = make_buffer(num_prompts=12)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(4):
        groups = RECENT.select(buffer, num_prompts=3, num_per_prompt=2, policy_version=0, rng=rng)
        drawn += prompts_of(groups)
    assert sorted(drawn) == list(range(12))


def test_fresh_prompt_is_not_demoted_by_later_insertions_or_draws():
    buffer = make_buffer()
    buffer.insert(make_group(7, [0, 1], version=0))
    for version in range(1, 6):
        buffer.insert(make_group(version, [0, 1], version=version))
        # Newer data is preferred ...
        assert prompts_of(draw(RECENT, buffer, version=version)) == [version]
    # ... but the old prompt, never used, still comes before anything that was used.
    assert prompts_of(draw(RECENT, buffer, version=6)) == [7]
    assert prompts_of(draw(RECENT, buffer, version=6)) == [5]


def test_used_prompt_becomes_fresh_again_by_new_data():
    buffer = make_buffer(num_prompts=3)
    draw(RECENT, buffer, 3)
    buffer.insert(make_group(1, [8], version=1))
    assert prompts_of(draw(RECENT, buffer)) == [1]


def test_newer_copy_of_known_tokens_counts_as_fresh_data():
    buffer = make_buffer(num_prompts=3)
    draw(RECENT, buffer, 3)
    buffer.insert(make_group(2, [0], version=1))
    assert prompts_of(draw(RECENT, buffer)) == [2]


def test_use_through_the_whole_buffer_ends_freshness_too():
    buffer = make_buffer(num_prompts=2)
    [used] = prompts_of(draw(ANY, buffer))
    assert prompts_of(draw(RECENT, buffer)) == [1 - used]


def test_recency_takes_only_fresh_trajectories_when_there_are_enough():
    buffer = make_buffer()
    buffer.insert(make_group(1, range(10), version=0))
    draw(RECENT, buffer)
    buffer.insert(make_group(1, range(10, 16), version=1))
    seen = Counter(itertools.chain.from_iterable(tokens_of(g) for g in repeated_fresh_draws(buffer, k=4)))
    assert set(seen) == set(range(10, 16))


def repeated_fresh_draws(buffer: ReplayBuffer, *, k: int) -> list[TrajectoryGroup]:
    groups = []
    for seed in range(60):
        groups += draw(RECENT, buffer, k=k, seed=seed)
        buffer.undo_batch()
    return groups


def test_recency_fills_up_with_the_newest_others():
    buffer = make_buffer()
    buffer.insert(make_group(1, range(10), version=0))
    draw(RECENT, buffer)
    buffer.insert(make_group(1, [20, 21], version=1))
    [group] = draw(RECENT, buffer, k=4)
    assert sorted(tokens_of(group)) == [8, 9, 20, 21]


def test_equal_rewards_last_takes_prompts_whose_rewards_differ_first():
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=100, equal_rewards_last=True)
    buffer.insert(make_group(1, range(3), version=4, rewards=[1.0, 1.0, 1.0]))
    buffer.insert(make_group(2, range(3), version=2, rewards=[1.0, 1.0, 0.0]))
    buffer.insert(make_group(3, range(3), version=3, rewards=[0.0, 1.0, 0.0]))
    buffer.insert(make_group(4, range(3), version=5, rewards=[0.0, 0.0, 0.0]))
    assert prompts_of(draw(RECENT, buffer, 4)) == [3, 2, 4, 1]


def test_equal_rewards_last_judges_by_what_came_since_the_last_draw():
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=100, equal_rewards_last=True)
    buffer.insert(make_group(1, range(3), rewards=[1.0, 0.0, 0.0]))
    draw(RECENT, buffer)
    buffer.insert(make_group(1, range(3, 6), version=2, rewards=[1.0, 1.0, 1.0]))
    buffer.insert(make_group(2, range(3), version=1, rewards=[1.0, 0.0, 0.0]))
    assert prompts_of(draw(RECENT, buffer, 2)) == [2, 1]


def test_more_new_trajectories_than_the_prompt_keeps_stay_within_what_it_holds():
    """The reference code counts new items before trimming and then indexes from the wrong end."""
    buffer = ReplayBuffer(capacity=1000, capacity_per_prompt=5)
    buffer.insert(make_group(1, range(12), version=0))
    for seed in range(20):
        [group] = draw(RECENT, buffer, k=3, seed=seed)
        assert set(tokens_of(group)) <= {7, 8, 9, 10, 11}
    assert buffer.prompts[1].num_fresh == 0
    buffer.insert(make_group(1, range(20, 32), version=1))
    assert buffer.prompts[1].num_fresh == 5


def test_fresh_data_of_an_older_version_is_used_although_newer_is_held():
    buffer = make_buffer()
    buffer.insert(make_group(1, [0, 1, 2, 3], version=5))
    draw(RECENT, buffer)
    buffer.insert(make_group(1, [10, 11], version=4))
    [group] = draw(RECENT, buffer, k=2)
    assert sorted(tokens_of(group)) == [10, 11]


def test_recency_choice_among_equals_is_uniform():
    counts = Counter()
    rng = np.random.default_rng(5)
    for _ in range(2000):
        buffer = make_buffer(num_prompts=4)
        [group] = RECENT.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        counts[group.prompt_id] += 1
    assert chi_square(counts, dict.fromkeys(range(4), 0.25)) < CRITICAL_CHI_SQUARE[3]


def test_recency_with_large_buckets_never_repeats_within_a_batch():
    buffer = make_buffer(num_prompts=200)
    draw(RECENT, buffer, 200)
    drawn = prompts_of(draw(RECENT, buffer, 200, seed=1))
    assert sorted(drawn) == list(range(200))


# --- whole buffer ----------------------------------------------------------------------------------------------------


def test_whole_buffer_gives_every_prompt_its_turn_once_before_any_again():
    buffer = make_buffer(num_prompts=10)
    rng = np.random.default_rng(0)
    for _ in range(3):
        drawn = []
        for _ in range(5):
            drawn += prompts_of(ANY.select(buffer, num_prompts=2, num_per_prompt=2, policy_version=0, rng=rng))
        assert sorted(drawn) == list(range(10))


def test_whole_buffer_prompt_choice_is_uniform_over_versions():
    counts = Counter()
    rng = np.random.default_rng(1)
    for _ in range(1000):
        buffer = make_buffer()
        for prompt_id in range(10):
            buffer.insert(make_group(prompt_id, range(2 + prompt_id), version=prompt_id))
        groups = ANY.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=10, rng=rng)
        counts.update(prompts_of(groups))
    assert chi_square(counts, dict.fromkeys(range(10), 0.1)) < CRITICAL_CHI_SQUARE[9]


@pytest.mark.parametrize("seed", range(5))
def test_prompt_inserted_in_mid_turn_joins_the_present_turn(seed: int):
    buffer = make_buffer(num_prompts=4)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(5):
        drawn += prompts_of(ANY.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng))
        if len(drawn) == 2:
            buffer.insert(make_group(50, [0, 1]))
    assert sorted(drawn) == [0, 1, 2, 3, 50]


@pytest.mark.parametrize("inverse_temperature", [0.0, 0.7, 3.0])
def test_pairs_follow_the_reward_softmax_without_replacement(inverse_temperature: float):
    rewards = [0.0, 0.5, 1.0, -1.0]
    weights = [math.exp(inverse_temperature * reward) for reward in rewards]
    p = [weight / sum(weights) for weight in weights]
    expected = {
        (i, j): p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in itertools.combinations(range(4), 2)
    }
    buffer = make_buffer()
    buffer.insert(make_group(1, range(4), rewards=rewards))
    sampler = MixtureSampler(
        on_policy_fraction=0.0, prioritization="reward-softmax", inverse_temperature=inverse_temperature
    )
    rng = np.random.default_rng(11)
    counts = Counter()
    for _ in range(4000):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        counts[tuple(sorted(tokens_of(group)))] += 1
    assert chi_square(counts, expected) < CRITICAL_CHI_SQUARE[5]


def test_uniform_prioritization_ignores_rewards():
    buffer = make_buffer()
    buffer.insert(make_group(1, range(4), rewards=[0.0, 50.0, 100.0, -100.0]))
    rng = np.random.default_rng(2)
    counts = Counter()
    for _ in range(2000):
        [group] = ANY.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        counts[tuple(sorted(tokens_of(group)))] += 1
    expected = dict.fromkeys(itertools.combinations(range(4), 2), 1 / 6)
    assert chi_square(counts, expected) < CRITICAL_CHI_SQUARE[5]


@pytest.mark.parametrize("inverse_temperature", [1e6, 1e18, 1e300])
def test_huge_inverse_temperature_takes_the_best_and_splits_ties_evenly(inverse_temperature: float):
    buffer = make_buffer()
    buffer.insert(make_group(1, range(6), rewards=[-3.0, 0.25, 0.25, 0.25, 0.25, -1e5]))
    sampler = MixtureSampler(
        on_policy_fraction=0.0, prioritization="reward-softmax", inverse_temperature=inverse_temperature
    )
    rng = np.random.default_rng(3)
    counts = Counter()
    for _ in range(2000):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        counts[tuple(sorted(tokens_of(group)))] += 1
    expected = dict.fromkeys(itertools.combinations([1, 2, 3, 4], 2), 1 / 6)
    assert chi_square(counts, expected) < CRITICAL_CHI_SQUARE[5]
    [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=5, policy_version=0, rng=rng)
    assert set(tokens_of(group)) == {0, 1, 2, 3, 4}


def test_ties_below_the_best_are_split_evenly_where_the_weights_swallow_the_noise():
    rng = np.random.default_rng(8)
    log_weights = np.array([-1e18, -1e18, 0.0, -1e18, -1e18])
    counts = Counter()
    for _ in range(2000):
        first, *others = choose_weighted(log_weights, scale=1.0, num_chosen=3, rng=rng)
        assert first == 2
        counts[tuple(sorted(others))] += 1
    expected = dict.fromkeys(itertools.combinations([0, 1, 3, 4], 2), 1 / 6)
    assert chi_square(counts, expected) < CRITICAL_CHI_SQUARE[5]


@pytest.mark.parametrize("inverse_temperature", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("rewards", [[1e308, -1e308, 0.0], [0.0, 0.0, 0.0], [-5.0, -5.0, -5.0], [-0.0, 0.0, 1e-320]])
def test_extreme_and_equal_rewards_are_drawn_without_warning(rewards: list[float], inverse_temperature: float):
    buffer = make_buffer()
    buffer.insert(make_group(1, range(3), rewards=rewards))
    sampler = MixtureSampler(
        on_policy_fraction=0.0, prioritization="reward-softmax", inverse_temperature=inverse_temperature
    )
    for k in (2, 3, 8):
        [group] = draw(sampler, buffer, k=k)
        assert len(group.trajectories) == k
        assert len(set(tokens_of(group))) == min(k, 3)


@pytest.mark.parametrize(
    "sampler",
    [
        RECENT,
        ANY,
        MixtureSampler(on_policy_fraction=0.0, prioritization="reward-softmax"),
        MixtureSampler(on_policy_fraction=0.0, prioritization="residual"),
    ],
)
def test_fewer_than_k_gives_each_once_and_copies_for_the_rest(sampler: MixtureSampler):
    buffer = make_buffer()
    buffer.insert(make_group(1, [4, 5, 6], rewards=[0.0, 1.0, 2.0]))
    [group] = draw(sampler, buffer, k=8)
    assert len(group.trajectories) == 8
    assert set(tokens_of(group)) == {4, 5, 6}


def test_copies_for_the_rest_follow_the_weights():
    rng = np.random.default_rng(4)
    log_weights = np.log([0.1, 0.2, 0.3, 0.4])
    counts = Counter()
    for _ in range(1000):
        chosen = choose_weighted(log_weights, scale=1.0, num_chosen=6, rng=rng)
        assert chosen[:4] == [0, 1, 2, 3]
        counts.update(chosen[4:])
    assert chi_square(counts, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}) < CRITICAL_CHI_SQUARE[3]


# --- mixture, batches, limits ----------------------------------------------------------------------------------------


def test_mixture_takes_recent_data_with_probability_m():
    sampler = MixtureSampler(on_policy_fraction=0.7)
    rng = np.random.default_rng(6)
    num_recent = 0
    for _ in range(1000):
        buffer = make_buffer(num_prompts=19)
        buffer.insert(make_group(19, [0, 1], version=1))
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=1, rng=rng)
        num_recent += group.prompt_id == 19
    share = 0.7 + 0.3 / 20
    assert abs(num_recent / 1000 - share) < 4 * math.sqrt(share * (1 - share) / 1000)


def old_and_fresh(*, num_old: int, num_fresh: int) -> ReplayBuffer:
    """One prompt: tokens below `num_old` were drawn before, the others never."""
    buffer = make_buffer()
    buffer.insert(make_group(1, range(num_old), version=0))
    draw(ANY, buffer)
    buffer.insert(make_group(1, range(num_old, num_old + num_fresh), version=1))
    return buffer


@pytest.mark.parametrize("prioritization", ["uniform", "reward-softmax"])
def test_mixing_by_trajectory_gives_each_of_a_prompt_a_coin_of_its_own(prioritization: Prioritization):
    sampler = MixtureSampler(on_policy_fraction=0.5, mixing="by-trajectory", prioritization=prioritization)
    buffer = old_and_fresh(num_old=80, num_fresh=10)
    num_fresh = Counter()
    for seed in range(400):
        [group] = draw(sampler, buffer, k=4, seed=seed)
        tokens = tokens_of(group)
        assert len(set(tokens)) == 4
        num_fresh[sum(token >= 80 for token in tokens)] += 1
        buffer.undo_batch()
    # Of those that do not come from the recent ones, about one in nine is recent by chance.
    mean = sum(number * times for number, times in num_fresh.items()) / 400
    assert 2.0 < mean < 2.0 + 2.0 * 10 / 90 + 0.2
    # With a coin for the prompt half of the groups would be all fresh.
    assert num_fresh[4] / 400 < 0.2


@pytest.mark.parametrize(("m", "same"), [(1.0, RECENT), (0.0, ANY)])
def test_mixing_by_trajectory_at_its_ends_draws_as_by_prompt(m: float, same: MixtureSampler):
    sampler = MixtureSampler(on_policy_fraction=m, mixing="by-trajectory")
    seen = {}
    for name, drawn_by in (("by-trajectory", sampler), ("by-prompt", same)):
        buffer = old_and_fresh(num_old=10, num_fresh=10)
        counts = Counter()
        for seed in range(300):
            [group] = draw(drawn_by, buffer, k=4, seed=seed)
            counts.update(token >= 10 for token in tokens_of(group))
            buffer.undo_batch()
        seen[name] = counts[True] / 1200
    assert seen["by-trajectory"] == pytest.approx(seen["by-prompt"], abs=0.06)


def test_mixing_by_trajectory_with_fewer_than_k_gives_each_once():
    sampler = MixtureSampler(on_policy_fraction=0.5, mixing="by-trajectory")
    for seed in range(30):
        [group] = draw(sampler, old_and_fresh(num_old=2, num_fresh=1), k=5, seed=seed)
        assert set(tokens_of(group)) == {0, 1, 2}


@pytest.mark.parametrize("m", [0.0, 0.3, 1.0])
def test_batch_holds_no_prompt_twice_while_there_are_enough(m: float):
    buffer = make_buffer(num_prompts=20)
    rng = np.random.default_rng(0)
    sampler = MixtureSampler(on_policy_fraction=m)
    for _ in range(20):
        groups = sampler.select(buffer, num_prompts=16, num_per_prompt=2, policy_version=0, rng=rng)
        assert len(set(prompts_of(groups))) == 16


@pytest.mark.parametrize("m", [0.0, 0.5, 1.0])
def test_batch_larger_than_the_buffer_repeats_prompts_evenly(m: float):
    buffer = make_buffer(num_prompts=3)
    groups = draw(MixtureSampler(on_policy_fraction=m), buffer, 8)
    assert sorted(Counter(prompts_of(groups)).values()) == [2, 3, 3]


@pytest.mark.parametrize("m", [0.0, 1.0])
def test_prompt_with_a_single_distinct_trajectory_is_never_drawn(m: float):
    buffer = make_buffer()
    buffer.insert(make_group(1, [5, 5, 5, 5], version=9))
    buffer.insert(make_group(2, [5, 6]))
    assert prompts_of(draw(MixtureSampler(on_policy_fraction=m), buffer, 3, k=4)) == [2, 2, 2]


@pytest.mark.parametrize("m", [0.0, 1.0])
def test_nothing_eligible_gives_an_empty_batch(m: float):
    buffer = make_buffer()
    assert draw(MixtureSampler(on_policy_fraction=m), buffer, 3) == []
    buffer.insert(make_group(1, [5]))
    assert draw(MixtureSampler(on_policy_fraction=m), buffer, 3) == []


@pytest.mark.parametrize("m", [0.0, 0.5, 1.0])
def test_max_staleness_is_never_exceeded(m: float):
    buffer = make_buffer()
    sampler = MixtureSampler(on_policy_fraction=m, max_staleness=3)
    rng = np.random.default_rng(0)
    for version in range(20):
        buffer.insert(make_group(version % 5, [3 * version, 3 * version + 1, 3 * version + 2], version=version))
        for group in sampler.select(buffer, num_prompts=4, num_per_prompt=4, policy_version=version, rng=rng):
            for trajectory in group.trajectories:
                assert 0 <= version - trajectory.completion.first_version <= 3
    assert len(buffer) == 12


@pytest.mark.fault("I-06")
def test_max_staleness_zero_leaves_the_present_version_only():
    buffer = make_buffer(num_prompts=3, version=4)
    sampler = MixtureSampler(on_policy_fraction=0.5, max_staleness=0)
    assert len(draw(sampler, buffer, 2, version=4)) == 2
    assert draw(sampler, buffer, 2, version=5) == []


def test_same_seed_same_batches_other_seed_others():
    def batches(seed: int) -> list[TrajectoryGroup]:
        buffer = make_buffer()
        rng = np.random.default_rng(seed)
        sampler = MixtureSampler(on_policy_fraction=0.5, prioritization="reward-softmax")
        groups = []
        for version in range(10):
            for number in range(4):
                tokens = range(4 * version, 4 * version + 4)
                buffer.insert(make_group(7 * version % 5 + number, tokens, version=version, rewards=[0, 1, 0, 1]))
            groups += sampler.select(buffer, num_prompts=3, num_per_prompt=3, policy_version=version, rng=rng)
        return groups

    def choices(groups: list[TrajectoryGroup]) -> list[tuple[int, list[int]]]:
        return [(group.prompt_id, tokens_of(group)) for group in groups]

    assert choices(batches(1)) == choices(batches(1))
    assert choices(batches(1)) != choices(batches(2))


@pytest.mark.parametrize("num_prompts", [3, 20], ids=["some prompts", "prompts repeat"])
def test_undone_batch_is_drawn_again_as_if_it_had_never_been(tmp_path, num_prompts: int):
    buffer = make_buffer(num_prompts=8)
    sampler = MixtureSampler(on_policy_fraction=0.5)
    draw(sampler, buffer, 5)
    buffer.insert(make_group(3, [10, 11], version=2))
    save_buffer(buffer, tmp_path / "before")
    first = draw(sampler, buffer, num_prompts, seed=1)
    buffer.undo_batch()
    save_buffer(buffer, tmp_path / "after")
    for name in ("buffer.json", "trajectories.msgpack"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes(), name
    assert draw(sampler, buffer, num_prompts, seed=1) == first


def test_committed_batch_stays_drawn():
    buffer = make_buffer(num_prompts=4)
    draw(RECENT, buffer, 2)
    buffer.commit_batch()
    buffer.undo_batch()
    assert buffer.counters.num_draws == 4


def test_uses_are_counted_once_for_each_place_in_a_batch():
    buffer = make_buffer(num_prompts=4)
    draw(RECENT, buffer, 4, k=3)
    uses = [stored.num_draws for stored in buffer.trajectories()]
    assert sum(uses) == 12
    assert buffer.samples_per_insert == 12 / 16


# --- samplers by name ------------------------------------------------------------------------------------------------

SECTION = ReplaySection(
    on_policy_fraction=0.3,
    prioritization="residual",
    inverse_temperature=2.0,
    residual_exponent=0.5,
    max_staleness=7,
)


@pytest.mark.parametrize(
    ("name", "m", "prioritization"),
    [
        ("mixture", 0.3, "residual"),
        ("recency", 1.0, "uniform"),
        ("uniform", 0.0, "uniform"),
        ("reward-softmax", 0.0, "reward-softmax"),
        ("residual", 0.0, "residual"),
    ],
)
def test_samplers_are_made_of_the_replay_section(name: str, m: float, prioritization: str):
    sampler = registry.load("tbactl.samplers", name).from_section(SECTION)
    assert (sampler.on_policy_fraction, sampler.prioritization) == (m, prioritization)
    assert (sampler.inverse_temperature, sampler.residual_exponent, sampler.max_staleness) == (2.0, 0.5, 7)


def test_names_of_samplers_are_those_that_are_registered():
    assert sorted(registry.available("tbactl.samplers")) == [
        "mixture",
        "recency",
        "residual",
        "reward-softmax",
        "uniform",
    ]


def test_residuals_steer_later_draws_and_untrained_ones_come_with_the_largest():
    buffer = make_buffer()
    buffer.insert(make_group(1, range(8)))
    sampler = MixtureSampler(on_policy_fraction=0.0, prioritization="residual", residual_exponent=1000.0)
    [first] = draw(sampler, buffer, k=4)
    buffer.note_residuals({trajectory.uid: 0.5 for trajectory in first.trajectories[:2]})
    buffer.note_residuals({trajectory.uid: 0.1 for trajectory in first.trajectories[2:]})
    [second] = draw(sampler, buffer, k=6)
    assert set(tokens_of(second)) == set(range(8)) - set(tokens_of(first)[2:])


def test_m_and_inverse_temperature_follow_their_schedules():
    section = ReplaySection(
        sampler="mixture",
        prioritization="reward-softmax",
        on_policy_fraction=1.0,
        on_policy_fraction_final=0.5,
        on_policy_fraction_steps=10,
        inverse_temperature=0.0,
        inverse_temperature_final=4.0,
        inverse_temperature_steps=4,
    )
    at = {step: MixtureSampler.from_section(replay_at(section, step=step)) for step in (0, 2, 10, 99)}
    assert {step: sampler.on_policy_fraction for step, sampler in at.items()} == {0: 1.0, 2: 0.9, 10: 0.5, 99: 0.5}
    assert {step: sampler.inverse_temperature for step, sampler in at.items()} == {0: 0.0, 2: 2.0, 10: 4.0, 99: 4.0}


@pytest.mark.parametrize("prioritization", ["uniform", "reward-softmax"])
def test_prompt_drawn_block_by_block_can_be_emptied_and_filled_again(
    monkeypatch: pytest.MonkeyPatch, prioritization: Prioritization
):
    monkeypatch.setattr(stored_prompt, "MAX_PLAIN", 0)
    sampler = MixtureSampler(on_policy_fraction=0.0, prioritization=prioritization)
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    buffer.insert(make_group(1, [5, 6], version=0))
    buffer.insert(make_group(1, [7], version=4))
    draw(sampler, buffer)
    buffer.expire(oldest_version=4)
    # The newer copy takes the place of the only one that is left.
    buffer.insert(make_group(1, [7], version=5))
    buffer.insert(make_group(1, [8, 9], version=5))
    (group,) = draw(sampler, buffer)
    assert len({trajectory.completion.token_ids for trajectory in group.trajectories}) == 2

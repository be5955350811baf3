"""Each sampler draws with the probabilities that it states, from small prompts and block by block alike."""

import math
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from scipy import stats

from tbactl import registry
from tbactl.config.sections import ReplaySection
from tbactl.replay import sorted_slots, stored_prompt
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.samplers import Sampler
from tests.support.replay_frequencies import MIN_P_VALUE, assert_follows, successive_pairs
from tests.support.replay_groups import make_group, tokens_of

NUM_DRAWS = 1500
# Thousands of draws an example: looking for a simpler one would take minutes.
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)

block_sizes = st.sampled_from([None, 2, 3])
seeds = st.integers(0, 2**32)
scores = st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=2, max_size=5)
residuals = st.lists(st.sampled_from([None, -3.0, -0.1, 0.0, 0.5, 1.0]), min_size=2, max_size=5)


@pytest.fixture(autouse=True)
def _unpatched_afterwards(monkeypatch: pytest.MonkeyPatch):
    """`use_blocks` changes module constants."""
    monkeypatch.setattr(sorted_slots, "MAX_BLOCK", sorted_slots.MAX_BLOCK)
    monkeypatch.setattr(stored_prompt, "MAX_PLAIN", stored_prompt.MAX_PLAIN)


def use_blocks(size: int | None) -> None:
    """Make prompts of any size be drawn from block by block; None: never."""
    sorted_slots.MAX_BLOCK = size or 128
    stored_prompt.MAX_PLAIN = 0 if size else 10**9


def make_sampler(name: str, **settings_) -> Sampler:
    return registry.load("tbactl.samplers", name).from_section(ReplaySection(sampler=name, **settings_))


def make_buffer(rewards: list[float], *, prompt_id: int = 1) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity=100_000, capacity_per_prompt=100_000)
    for token, reward in enumerate(rewards):
        buffer.insert(make_group(prompt_id, [token], rewards=[reward]))
    return buffer


def train(buffer: ReplayBuffer, residuals_by_token: list[float | None]) -> None:
    """Let all trajectories of the prompt have been trained on, or not."""
    sampler = make_sampler("uniform")
    [group] = sampler.select(
        buffer, num_prompts=1, num_per_prompt=len(buffer), policy_version=0, rng=np.random.default_rng(0)
    )
    found = {t.uid: residuals_by_token[t.completion.token_ids[0]] for t in group.trajectories}
    buffer.note_residuals({uid: residual for uid, residual in found.items() if residual is not None})
    buffer.commit_batch()


def ordered_pairs(sampler: Sampler, buffer: ReplayBuffer, *, seed: int, num_draws: int = NUM_DRAWS) -> Counter:
    rng = np.random.default_rng(seed)
    counts = Counter()
    for _ in range(num_draws):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        counts[tuple(tokens_of(group))] += 1
    return counts


@given(scores, st.sampled_from([0.0, 0.3, 1.0, 4.0, 1e6, 1e300]), block_sizes, seeds)
@settings(max_examples=25, phases=WITHOUT_SHRINKING)
def test_reward_softmax_draws_successively_by_exp_of_the_reward(rewards, inverse_temperature, block_size, seed):
    use_blocks(block_size)
    sampler = make_sampler("reward-softmax", inverse_temperature=inverse_temperature)
    counts = ordered_pairs(sampler, make_buffer(rewards), seed=seed)
    assert_follows(counts, successive_pairs(rewards, scale=inverse_temperature))


def residual_scores(found: list[float | None]) -> list[float]:
    known = [abs(residual) for residual in found if residual is not None]
    most = max(known, default=1.0)
    sizes = [most if residual is None else abs(residual) for residual in found]
    return [math.log(size) if size else -math.inf for size in sizes]


@given(residuals, st.sampled_from([0.0, 0.5, 1.0, 3.0]), block_sizes, seeds)
@settings(max_examples=25, phases=WITHOUT_SHRINKING)
def test_residual_draws_successively_by_its_power_and_the_untrained_as_the_largest(found, exponent, block_size, seed):
    use_blocks(block_size)
    buffer = make_buffer([0.0] * len(found))
    sampler = make_sampler("residual", residual_exponent=exponent)
    # What blocks sum up to for this draw is out of date after training.
    ordered_pairs(sampler, buffer, seed=seed, num_draws=1)
    train(buffer, found)
    counts = ordered_pairs(sampler, buffer, seed=seed)
    assert_follows(counts, successive_pairs(residual_scores(found), scale=exponent))


@given(st.integers(2, 6), block_sizes, seeds)
@settings(max_examples=8, phases=WITHOUT_SHRINKING)
def test_uniform_draws_each_pair_alike(num_items, block_size, seed):
    use_blocks(block_size)
    counts = ordered_pairs(make_sampler("uniform"), make_buffer([float(i) for i in range(num_items)]), seed=seed)
    if num_items > 2:
        assert_follows(counts, successive_pairs([0.0] * num_items, scale=0.0))
    assert {tuple(sorted(pair)) for pair in counts} <= {(i, j) for j in range(num_items) for i in range(j)}


@given(st.integers(2, 6), st.sampled_from([0, 2, 5]), seeds)
@settings(max_examples=8, phases=WITHOUT_SHRINKING)
def test_recency_draws_each_pair_of_fresh_ones_alike(num_fresh, num_old, seed):
    buffer = make_buffer([0.0] * num_old)
    rng = np.random.default_rng(seed)
    sampler = make_sampler("recency")
    sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
    buffer.insert(make_group(1, range(10, 10 + num_fresh)))
    counts = Counter()
    for _ in range(NUM_DRAWS):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=rng)
        buffer.undo_batch()
        counts[tuple(sorted(tokens_of(group)))] += 1
    pairs = [(10 + i, 10 + j) for j in range(num_fresh) for i in range(j)]
    assert_follows(counts, dict.fromkeys(pairs, 1 / len(pairs)))


@given(st.sampled_from([0.0, 0.25, 0.6, 1.0]), st.sampled_from(["uniform", "reward-softmax", "residual"]), seeds)
@settings(max_examples=10, phases=WITHOUT_SHRINKING)
def test_mixture_takes_the_newest_prompt_with_probability_m_and_any_otherwise(m, prioritization, seed):
    num_prompts = 5
    buffer = ReplayBuffer(capacity=1000, capacity_per_prompt=100)
    for prompt_id in range(num_prompts):
        buffer.insert(make_group(prompt_id, range(4), version=prompt_id))
    sampler = make_sampler("mixture", on_policy_fraction=m, prioritization=prioritization)
    rng = np.random.default_rng(seed)
    counts = Counter()
    for _ in range(NUM_DRAWS):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=2, policy_version=9, rng=rng)
        buffer.undo_batch()
        counts[group.prompt_id] += 1
    newest = num_prompts - 1
    assert_follows(counts, {i: m * (i == newest) + (1.0 - m) / num_prompts for i in range(num_prompts)})


def classes_drawn(sampler: Sampler, buffer: ReplayBuffer, *, k: int, num_draws: int, seed: int) -> np.ndarray:
    """How many trajectories of each class (token modulo 8) all draws together hold."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(8, dtype=np.int64)
    for _ in range(num_draws):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=k, policy_version=0, rng=rng)
        tokens = tokens_of(group)
        assert len(set(tokens)) == k
        counts += np.bincount(np.array(tokens) % 8, minlength=8)
    return counts


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uniform", {}),
        ("reward-softmax", {"inverse_temperature": 0.5}),
        ("reward-softmax", {"inverse_temperature": 1000.0}),
        ("residual", {"residual_exponent": 1.0}),
    ],
)
def test_block_by_block_a_big_prompt_gives_what_looking_at_all_gives(name: str, options: dict):
    """K = 200 of 1,600, where there are 200 in each class; rewards and residuals depend on the class."""
    buffer = make_buffer([float(token % 8) for token in range(1600)])
    train(buffer, [None if token % 8 == 7 else 0.1 * (token % 8) for token in range(1600)])
    sampler = make_sampler(name, **options)
    plain, blocks = [], []
    for seed in range(2):
        use_blocks(None)
        plain.append(classes_drawn(sampler, buffer, k=200, num_draws=20, seed=seed))
        stored_prompt.MAX_PLAIN = 1000
        blocks.append(classes_drawn(sampler, buffer, k=200, num_draws=20, seed=seed + 2))
    table = np.array([np.sum(plain, axis=0), np.sum(blocks, axis=0)])
    drawn = table[:, table.sum(axis=0) > 0]
    if drawn.shape[1] > 1:
        assert stats.chi2_contingency(drawn).pvalue > MIN_P_VALUE
    else:
        assert name == "reward-softmax"


def test_a_big_prompt_with_few_of_positive_weight_gives_these_first_and_then_the_next_best():
    """Three have reward 1, ten 0.5, the rest 0: at this temperature the levels do not mix."""
    rewards = [1.0] * 3 + [0.5] * 10 + [0.0] * 3000
    buffer = make_buffer(rewards)
    sampler = make_sampler("reward-softmax", inverse_temperature=1e6)
    rng = np.random.default_rng(0)
    thirds = Counter()
    for _ in range(60):
        [group] = sampler.select(buffer, num_prompts=1, num_per_prompt=20, policy_version=0, rng=rng)
        tokens = tokens_of(group)
        assert set(tokens[:3]) == {0, 1, 2}
        assert set(tokens[3:13]) == set(range(3, 13))
        thirds.update(13 <= token < 1513 for token in tokens[13:])
    assert_follows(thirds, {True: 0.5, False: 0.5})


def test_first_of_a_big_prompt_follows_the_weights():
    rewards = [float(token % 7) / 2 for token in range(2100)]
    sampler = make_sampler("reward-softmax", inverse_temperature=1.0)
    buffer = make_buffer(rewards)
    counts = Counter()
    for first, _ in ordered_pairs(sampler, buffer, seed=3, num_draws=2500).elements():
        counts[first % 7] += 1
    weights = [math.exp(i / 2) for i in range(7)]
    assert_follows(counts, {i: weight / sum(weights) for i, weight in enumerate(weights)})

import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.samplers import MixtureSampler
from tbactl.replay.snapshot import load_buffer, rng_state_from_json, rng_state_to_json, save_buffer
from tbactl.types import TrajectoryGroup
from tests.support.replay_groups import make_group, tokens_of

# Few prompts, tokens and versions, so that duplicates, ties and evictions are the rule.
rewards = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
insertions = st.builds(
    lambda prompt_id, items, version: make_group(
        prompt_id, [token for token, _ in items], version=version, rewards=[reward for _, reward in items]
    ),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 8), rewards), max_size=6),
    st.integers(0, 6),
)
draws = st.tuples(st.integers(1, 4), st.integers(2, 5))
operations = st.lists(st.one_of(insertions, draws), max_size=25)
samplers = st.builds(
    MixtureSampler,
    on_policy_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    prioritization=st.sampled_from(["uniform", "reward-softmax"]),
    inverse_temperature=st.sampled_from([0.0, 1.0, 1e6]),
    max_staleness=st.sampled_from([None, 2]),
)


class PlainModel:
    """The rules of storage as plain as can be: one list of (version, number, prompt, token, reward)."""

    def __init__(self, *, capacity: int, capacity_per_prompt: int) -> None:
        self.capacity, self.capacity_per_prompt = capacity, capacity_per_prompt
        self.items: list[tuple[int, int, int, int, float]] = []
        self.number = 0

    def insert(self, group: TrajectoryGroup) -> None:
        for trajectory in group.trajectories:
            token, version = trajectory.completion.token_ids[0], trajectory.completion.first_version
            copies = [item for item in self.items if item[2:4] == (group.prompt_id, token)]
            if not copies or copies[0][0] <= version:
                self.items = [item for item in self.items if item not in copies]
                self.items.append((version, self.number, group.prompt_id, token, trajectory.reward))
            self.number += 1
        self.items.sort()
        of_prompt = [item for item in self.items if item[2] == group.prompt_id]
        for item in of_prompt[: max(len(of_prompt) - self.capacity_per_prompt, 0)]:
            self.items.remove(item)
        self.items = self.items[max(len(self.items) - self.capacity, 0) :]

    def expire(self, oldest_version: int) -> None:
        self.items = [item for item in self.items if item[0] >= oldest_version]


def assert_buffer_equals_model(buffer: ReplayBuffer, model: PlainModel) -> None:
    held = [
        (stored.version, stored.insert_number, prompt_id, stored.to_trajectory().completion.token_ids[0], stored.reward)
        for prompt_id, prompt in buffer.prompts.items()
        for stored in prompt.trajectories
    ]
    assert sorted(held) == model.items
    assert len(buffer) == len(model.items)
    assert buffer.versions == Counter(item[0] for item in model.items)
    assert buffer.rewards == Counter(item[4] for item in model.items)
    counters = buffer.counters
    assert counters.num_new - counters.num_evicted - counters.num_expired == len(buffer)


def assert_orders_of_drawing_are_right(buffer: ReplayBuffer) -> None:
    eligible = {}
    for prompt_id, prompt in buffer.prompts.items():
        ages = [stored.age_key for stored in prompt.trajectories]
        assert ages == sorted(set(ages))
        assert ages
        fresh = [stored for stored in prompt.trajectories if stored.insert_number > prompt.last_draw]
        assert prompt.num_fresh == len(fresh)
        if len(ages) >= 2:
            eligible[prompt_id] = (bool(fresh), ages[-1][0])
    assert sorted(buffer.urn.items) == sorted(eligible)
    assert 0 <= buffer.urn.num_left <= len(eligible)
    by_recency = {item: (fresh, version) for fresh, version, items in buffer.recency.dump() for item in items}
    assert by_recency == eligible


def apply(buffer: ReplayBuffer, sampler: MixtureSampler, rng: np.random.Generator, operation, *, version: int):
    if isinstance(operation, TrajectoryGroup):
        return buffer.insert(operation)
    num_prompts, k = operation
    return sampler.select(buffer, num_prompts=num_prompts, num_per_prompt=k, policy_version=version, rng=rng)


@given(operations, samplers, st.integers(2, 20), st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_buffer_holds_what_the_plain_rules_say(steps, sampler, capacity, capacity_per_prompt, seed):
    buffer = ReplayBuffer(capacity=capacity, capacity_per_prompt=capacity_per_prompt)
    model = PlainModel(capacity=capacity, capacity_per_prompt=capacity_per_prompt)
    rng = np.random.default_rng(seed)
    for operation in steps:
        if isinstance(operation, TrajectoryGroup):
            model.insert(operation)
        elif sampler.max_staleness is not None:
            model.expire(6 - sampler.max_staleness)
        groups = apply(buffer, sampler, rng, operation, version=6)
        assert_buffer_equals_model(buffer, model)
        assert_orders_of_drawing_are_right(buffer)
        if not isinstance(operation, TrajectoryGroup):
            assert_batch_is_right(groups, buffer, *operation)


def assert_batch_is_right(groups: list[TrajectoryGroup], buffer: ReplayBuffer, num_prompts: int, k: int) -> None:
    assert len(groups) == (num_prompts if buffer.num_eligible_prompts else 0)
    prompt_counts = Counter(group.prompt_id for group in groups)
    if prompt_counts:
        assert max(prompt_counts.values()) == -(-num_prompts // buffer.num_eligible_prompts)
    for group in groups:
        tokens = tokens_of(group)
        num_held = len(buffer.prompts[group.prompt_id].trajectories)
        assert len(tokens) == k
        assert len(set(tokens)) == min(k, num_held) >= 2


@given(operations, operations, samplers, st.integers(2, 20), st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_restored_buffer_makes_the_same_draws_and_evictions(before, after, sampler, capacity, per_prompt, seed):
    original = ReplayBuffer(capacity=capacity, capacity_per_prompt=per_prompt)
    rng = np.random.default_rng(seed)
    for operation in before:
        apply(original, sampler, rng, operation, version=6)
    with tempfile.TemporaryDirectory() as directory:
        save_buffer(original, Path(directory))
        restored = load_buffer(Path(directory), capacity=capacity, capacity_per_prompt=per_prompt)
    restored_rng = rng_state_from_json(rng_state_to_json(rng))
    for operation in after:
        expected = apply(original, sampler, rng, operation, version=7)
        assert apply(restored, sampler, restored_rng, operation, version=7) == expected
    assert restored.counters == original.counters
    assert restored.recency.dump() == original.recency.dump()
    assert restored.urn.items == original.urn.items
    assert restored.rewards == original.rewards


@given(operations, st.integers(2, 10), st.integers(2, 5))
@settings(max_examples=50, deadline=None)
def test_restore_into_smaller_capacities_keeps_the_newest(steps, capacity, capacity_per_prompt):
    original = ReplayBuffer(capacity=100, capacity_per_prompt=100)
    model = PlainModel(capacity=capacity, capacity_per_prompt=capacity_per_prompt)
    sampler = MixtureSampler(on_policy_fraction=0.5)
    for operation in steps:
        apply(original, sampler, np.random.default_rng(0), operation, version=6)
    with tempfile.TemporaryDirectory() as directory:
        save_buffer(original, Path(directory))
        restored = load_buffer(Path(directory), capacity=capacity, capacity_per_prompt=capacity_per_prompt)
    for prompt_id, prompt in original.prompts.items():
        for stored in prompt.trajectories[-capacity_per_prompt:]:
            token = stored.to_trajectory().completion.token_ids[0]
            model.items.append((stored.version, stored.insert_number, prompt_id, token, stored.reward))
    model.items = sorted(model.items)[-capacity:]
    assert_buffer_equals_model(restored, model)
    assert_orders_of_drawing_are_right(restored)
    assert restored.counters.num_evicted - original.counters.num_evicted == len(original) - len(restored)

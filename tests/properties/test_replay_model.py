"""The buffer against the plainest model of its rules: insertions, draws, undone draws, residuals, expiry, snapshots."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tbactl.replay import sorted_slots, stored_prompt
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.samplers import MixtureSampler
from tbactl.replay.snapshot import load_buffer, rng_state_from_json, rng_state_to_json, save_buffer
from tbactl.types import TrajectoryGroup
from tests.support.replay_groups import make_group, tokens_of

VERSION = 6
"""Of the policy that draws."""

# Few prompts, tokens and versions, so that duplicates, ties and evictions are the rule.
rewards = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
insertions = st.builds(
    lambda prompt_id, items, version: make_group(
        prompt_id, [token for token, _ in items], version=version, rewards=[reward for _, reward in items]
    ),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 11), rewards), max_size=8),
    st.integers(0, VERSION),
)
samplers = st.builds(
    MixtureSampler,
    on_policy_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    prioritization=st.sampled_from(["uniform", "reward-softmax", "residual"]),
    inverse_temperature=st.sampled_from([0.0, 1.0, 1e6]),
    residual_exponent=st.sampled_from([0.0, 0.7]),
    max_staleness=st.sampled_from([None, None, 2]),
)
endings = st.one_of(st.just("undo"), st.just("leave"), st.lists(st.sampled_from([-2.0, 0.0, 0.25]), min_size=1))
draws = st.tuples(samplers, st.integers(1, 4), st.integers(2, 5), endings)
operations = st.lists(st.one_of(insertions, draws, st.just("snapshot")), max_size=30)
evictions = st.sampled_from(["oldest", "lowest-reward"])


@contextmanager
def blocks_of(size: int | None) -> Iterator[None]:
    """Draw block by block from prompts of any size, from blocks so small that they split and vanish."""
    with pytest.MonkeyPatch.context() as patch:
        if size is not None:
            patch.setattr(sorted_slots, "MAX_BLOCK", size)
            patch.setattr(stored_prompt, "MAX_PLAIN", 0)
        yield


class PlainModel:
    """The rules of storage as plain as can be: a list of what is held."""

    def __init__(self, *, capacity: int, capacity_per_prompt: int, eviction: str, equal_rewards_last: bool) -> None:
        self.capacity, self.capacity_per_prompt, self.eviction = capacity, capacity_per_prompt, eviction
        self.equal_rewards_last = equal_rewards_last
        self.items: list[dict] = []
        self.number = 0

    def insert(self, group: TrajectoryGroup) -> None:
        for trajectory in group.trajectories:
            item = {
                "version": trajectory.completion.first_version,
                "number": self.number,
                "prompt": group.prompt_id,
                "token": trajectory.completion.token_ids[0],
                "reward": trajectory.reward,
                "uid": trajectory.uid,
                "num_draws": 0,
                "residual": None,
            }
            self.number += 1
            copies = [i for i in self.items if (i["prompt"], i["token"]) == (item["prompt"], item["token"])]
            if copies and copies[0]["version"] > item["version"]:
                continue
            for copy in copies:
                item |= {"num_draws": copy["num_draws"], "residual": copy["residual"]}
                self.items.remove(copy)
            self.items.append(item)
        self.trim(lambda item: item["prompt"] == group.prompt_id, self.capacity_per_prompt)
        self.trim(lambda item: True, self.capacity)

    def trim(self, concerns, limit: int) -> None:
        leaving = sorted((item for item in self.items if concerns(item)), key=self.leaves_first)
        for item in leaving[: max(len(leaving) - limit, 0)]:
            self.items.remove(item)

    def leaves_first(self, item: dict):
        age = item["version"], item["number"]
        return age if self.eviction == "oldest" else (item["reward"], *age)

    def expire(self, oldest_version: int) -> None:
        self.items = [item for item in self.items if item["version"] >= oldest_version]

    def train_on(self, groups: list[TrajectoryGroup], residuals: dict[int, float]) -> None:
        by_uid = {item["uid"]: item for item in self.items}
        for group in groups:
            for trajectory in group.trajectories:
                by_uid[trajectory.uid]["num_draws"] += 1
        for uid, residual in residuals.items():
            by_uid[uid]["residual"] = residual


def assert_buffer_equals_model(buffer: ReplayBuffer, model: PlainModel) -> None:
    held = [
        {
            "version": stored.version,
            "number": stored.insert_number,
            "prompt": stored.prompt_id,
            "token": stored.token_ids[0],
            "reward": stored.reward,
            "uid": stored.uid,
            "num_draws": stored.num_draws,
            "residual": stored.residual,
        }
        for stored in buffer.trajectories()
    ]
    assert sorted(held, key=lambda item: item["number"]) == sorted(model.items, key=lambda item: item["number"])
    assert len(buffer) == len(model.items)
    assert buffer.versions == Counter(item["version"] for item in model.items)
    assert sorted(buffer.rewards) == sorted(item["reward"] for item in model.items)
    counters = buffer.counters
    assert counters.num_insertions == model.number == counters.num_new + counters.num_duplicates
    assert counters.num_new - counters.num_evicted - counters.num_expired == len(buffer)


def assert_orders_of_drawing_are_right(buffer: ReplayBuffer, model: PlainModel) -> None:
    eligible = {}
    for prompt_id, prompt in buffer.prompts.items():
        ages = [(stored.version, stored.insert_number) for stored in prompt.trajectories]
        assert ages == sorted(set(ages))
        assert ages
        fresh = [number for _, number in ages if number > prompt.last_draw]
        assert sorted(buffer.columns.insert_number[slot] for slot in prompt.fresh) == sorted(fresh)
        if len(ages) >= 2:
            rewards_of_fresh = {stored.reward for stored in prompt.trajectories if stored.insert_number in fresh}
            comes_first = model.equal_rewards_last and len(rewards_of_fresh) > 1
            eligible[prompt_id] = (bool(fresh) + comes_first, ages[-1][0])
    assert sorted(buffer.urn.items) == sorted(eligible)
    assert 0 <= buffer.urn.num_left <= len(eligible)
    by_recency = {item: (rank, version) for rank, version, items in buffer.recency.dump() for item in items}
    assert by_recency == eligible


def assert_batch_is_right(groups: list[TrajectoryGroup], buffer: ReplayBuffer, num_prompts: int, k: int) -> None:
    assert len(groups) == (num_prompts if buffer.num_eligible_prompts else 0)
    prompt_counts = Counter(group.prompt_id for group in groups)
    if prompt_counts:
        assert max(prompt_counts.values()) == -(-num_prompts // buffer.num_eligible_prompts)
    for group in groups:
        tokens = tokens_of(group)
        assert len(tokens) == k
        assert len(set(tokens)) == min(k, len(buffer.prompts[group.prompt_id])) >= 2


def all_state(buffer: ReplayBuffer):
    """Everything that later draws and evictions depend on."""
    prompts = [
        (
            prompt.header,
            prompt.last_draw,
            prompt.trajectories,
            [buffer.columns.insert_number[slot] for slot in prompt.fresh],
            [len(block) for block in prompt.ages.blocks],
        )
        for prompt in buffer.prompts.values()
    ]
    return prompts, list(buffer.urn.items), buffer.urn.num_left, buffer.recency.dump(), buffer.counters.copy()


def save_and_load(buffer: ReplayBuffer, **rules) -> ReplayBuffer:
    with tempfile.TemporaryDirectory() as directory:
        save_buffer(buffer, Path(directory))
        return load_buffer(Path(directory), **rules)


class Pair:
    """A buffer, its model, and the generator that draws."""

    def __init__(self, *, seed: int, **rules) -> None:
        self.rules = rules
        self.buffer, self.model = ReplayBuffer(**rules), PlainModel(**rules)
        self.rng = np.random.default_rng(seed)

    def apply(self, operation) -> None:
        if isinstance(operation, TrajectoryGroup):
            self.buffer.insert(operation)
            self.model.insert(operation)
        elif operation == "snapshot":
            before = all_state(self.buffer)
            self.buffer = save_and_load(self.buffer, **self.rules)
            assert all_state(self.buffer) == before
        else:
            self.draw(*operation)

    def draw(self, sampler: MixtureSampler, num_prompts: int, k: int, ending) -> None:
        oldest_version = 0 if sampler.max_staleness is None else VERSION - sampler.max_staleness
        self.buffer.expire(oldest_version=oldest_version)
        self.model.expire(oldest_version)
        before, rng_state = all_state(self.buffer), rng_state_to_json(self.rng)
        groups = select(self.buffer, sampler, self.rng, num_prompts, k)
        assert_batch_is_right(groups, self.buffer, num_prompts, k)
        if ending == "undo":
            self.buffer.undo_batch()
            assert all_state(self.buffer) == before
            self.rng = rng_state_from_json(rng_state)
            assert select(self.buffer, sampler, self.rng, num_prompts, k) == groups
        drawn = list(dict.fromkeys(trajectory.uid for group in groups for trajectory in group.trajectories))
        residuals = {uid: ending[i % len(ending)] for i, uid in enumerate(drawn)} if isinstance(ending, list) else {}
        self.buffer.note_residuals(residuals | {-1: 9.0})
        self.model.train_on(groups, residuals)


def select(buffer: ReplayBuffer, sampler: MixtureSampler, rng, num_prompts: int, k: int) -> list[TrajectoryGroup]:
    return sampler.select(buffer, num_prompts=num_prompts, num_per_prompt=k, policy_version=VERSION, rng=rng)


@given(
    operations,
    st.integers(2, 20),
    st.integers(2, 9),
    st.builds(dict, eviction=evictions, equal_rewards_last=st.booleans()),
    st.sampled_from([None, 2, 4]),
    st.integers(0, 2**32),
)
@settings(max_examples=200)
def test_buffer_does_what_the_plain_rules_say(steps, capacity, capacity_per_prompt, options, block_size, seed):
    with blocks_of(block_size):
        pair = Pair(seed=seed, capacity=capacity, capacity_per_prompt=capacity_per_prompt, **options)
        for operation in steps:
            pair.apply(operation)
            assert_buffer_equals_model(pair.buffer, pair.model)
            assert_orders_of_drawing_are_right(pair.buffer, pair.model)


@pytest.mark.fault("I-49")
@given(operations, operations, evictions, st.booleans(), st.sampled_from([None, 2, 4]), st.integers(0, 2**32))
@settings(max_examples=100)
def test_restored_buffer_makes_the_same_draws_and_evictions(
    before, after, eviction, equal_rewards_last, block_size, seed
):
    rules = {
        "capacity": 16,
        "capacity_per_prompt": 8,
        "eviction": eviction,
        "equal_rewards_last": equal_rewards_last,
    }
    with blocks_of(block_size):
        original = Pair(seed=seed, **rules)
        for operation in before:
            original.apply(operation)
        restored = Pair(seed=0, **rules)
        restored.buffer = save_and_load(original.buffer, **rules)
        restored.rng = rng_state_from_json(rng_state_to_json(original.rng))
        for operation in after:
            if isinstance(operation, TrajectoryGroup):
                assert restored.buffer.insert(operation) == original.buffer.insert(operation)
            elif operation != "snapshot":
                sampler, num_prompts, k, _ = operation
                expected = select(original.buffer, sampler, original.rng, num_prompts, k)
                assert select(restored.buffer, sampler, restored.rng, num_prompts, k) == expected
        assert all_state(restored.buffer) == all_state(original.buffer)


@pytest.mark.fault("I-51")
@given(operations, evictions, st.integers(2, 10), st.integers(2, 5))
@settings(max_examples=50)
def test_restore_into_smaller_capacities_keeps_what_leaves_last(steps, eviction, capacity, capacity_per_prompt):
    pair = Pair(seed=0, capacity=100, capacity_per_prompt=100, eviction=eviction, equal_rewards_last=False)
    for operation in steps:
        pair.apply(operation)
    smaller = {"capacity": capacity, "capacity_per_prompt": capacity_per_prompt, "eviction": eviction}
    restored = save_and_load(pair.buffer, **smaller)
    model = pair.model
    for prompt_id in {item["prompt"] for item in model.items}:
        model.trim(lambda item, prompt_id=prompt_id: item["prompt"] == prompt_id, capacity_per_prompt)
    model.trim(lambda item: True, capacity)
    assert_buffer_equals_model(restored, model)
    assert_orders_of_drawing_are_right(restored, model)
    assert restored.counters.num_evicted - pair.buffer.counters.num_evicted == len(pair.buffer) - len(restored)

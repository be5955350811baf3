"""Bounds are ten times what was seen and more: for work that grows with the buffer. benchmarks/replay.py measures."""

import time

import numpy as np
import pytest

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.holdings import Eviction
from tbactl.replay.samplers import MixtureSampler
from tests.support.replay_groups import make_group
from tests.support.slowness import slowness

NUM_TRAJECTORIES = 50_000


def median_cpu_s(action, *, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start_s = time.thread_time()
        action()
        times.append(time.thread_time() - start_s)
    return sorted(times)[repetitions // 2]


def full_buffer(*, num_prompts: int, eviction: Eviction) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity=NUM_TRAJECTORIES, capacity_per_prompt=NUM_TRAJECTORIES, eviction=eviction)
    rng = np.random.default_rng(0)
    for number in range(NUM_TRAJECTORIES // 100):
        tokens, rewards = range(100 * number, 100 * number + 100), rng.normal(size=100).tolist()
        buffer.insert(make_group(number % num_prompts, tokens, version=number // 100, rewards=rewards))
    assert len(buffer) == NUM_TRAJECTORIES
    return buffer


@pytest.mark.fault("R-07")
@pytest.mark.parametrize("eviction", ["oldest", "lowest-reward"])
@pytest.mark.parametrize(("num_prompts", "batch"), [(1000, (8, 20)), (1, (1, 160))], ids=["many prompts", "one prompt"])
def test_full_buffer_inserts_and_draws_fast_for_every_sampler(num_prompts: int, batch: tuple, eviction: Eviction):
    buffer = full_buffer(num_prompts=num_prompts, eviction=eviction)
    tokens = iter(range(10**6, 10**7, 8))
    rng, slow = np.random.default_rng(0), slowness()

    def insert() -> None:
        first = next(tokens)
        group = make_group(
            first % num_prompts, range(first, first + 8), version=200, rewards=rng.normal(size=8).tolist()
        )
        assert buffer.insert(group).num_evicted == 8

    assert median_cpu_s(insert, repetitions=50) < 0.01 * slow
    for prioritization in ("uniform", "reward-softmax", "residual"):
        for m in (0.0, 0.5, 1.0):
            sampler = MixtureSampler(on_policy_fraction=m, prioritization=prioritization)

            def draw(sampler: MixtureSampler = sampler) -> None:
                groups = sampler.select(
                    buffer, num_prompts=batch[0], num_per_prompt=batch[1], policy_version=200, rng=rng
                )
                buffer.note_residuals({t.uid: 0.1 for group in groups for t in group.trajectories})
                insert()
                sampler.select(buffer, num_prompts=batch[0], num_per_prompt=batch[1], policy_version=200, rng=rng)
                buffer.undo_batch()

            assert median_cpu_s(draw, repetitions=9) < 0.05 * slow

import time

import numpy as np

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.samplers import MixtureSampler
from tests.support.replay_groups import make_group


def median_cpu_s(action, *, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start_s = time.thread_time()
        action()
        times.append(time.thread_time() - start_s)
    return sorted(times)[repetitions // 2]


def test_insert_and_draw_do_not_slow_down_with_the_size_of_the_buffer():
    """A full buffer of 100,000: every insertion evicts; a draw takes 160. Limits are about five times what was seen."""
    buffer = ReplayBuffer(capacity=100_000, capacity_per_prompt=100)
    for number in range(12_500):
        buffer.insert(make_group(number % 5000, range(8 * number, 8 * number + 8), version=number // 100))
    assert len(buffer) == 100_000
    tokens = iter(range(10**6, 10**7, 8))

    def insert() -> None:
        first = next(tokens)
        report = buffer.insert(make_group(first % 5000, range(first, first + 8), version=200))
        assert report.num_evicted == 8

    rng = np.random.default_rng(0)
    sampler = MixtureSampler(on_policy_fraction=0.5, prioritization="reward-softmax")

    def draw() -> None:
        sampler.select(buffer, num_prompts=20, num_per_prompt=8, policy_version=200, rng=rng)

    assert median_cpu_s(insert, repetitions=200) < 0.001
    assert median_cpu_s(draw, repetitions=100) < 0.005

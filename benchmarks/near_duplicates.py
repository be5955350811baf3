"""Insertions into a full buffer of one prompt that keeps no near duplicates, as red-teaming has it.

    python -m benchmarks.near_duplicates [--held 100000]

Median seconds of process CPU time and of wall time, for a group of 20, with eviction; and of draws of 128.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine, Likeness
from tbactl.replay.samplers import MixtureSampler
from tbactl.types import Completion, Trajectory, TrajectoryGroup

GROUP, BATCH, DIMENSIONS, REPETITIONS = 20, 128, 384, 15
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


class Attacks:
    """Made-up sentences of 10 to 60 characters, never the same twice, with rewards that rise slowly."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        weights = [1 / (rank + 2) for rank in range(len(LETTERS))]
        self._words = ["".join(self._rng.choices(LETTERS, weights, k=self._rng.randint(2, 9))) for _ in range(20_000)]
        self._num_made = 0

    def group(self, size: int) -> TrajectoryGroup:
        """A group of the one prompt."""
        trajectories = []
        for _ in range(size):
            self._num_made += 1
            length, text = self._rng.randint(10, 60), ""
            while len(text) < length:
                text += self._rng.choice(self._words) + " "
            completion = Completion(
                token_ids=(*range(12), self._num_made), logprobs=(-1.0,) * 13, text=text[:length], finish_reason="stop"
            )
            reward = self._rng.gauss(1e-6 * self._num_made, 1.0)
            trajectories.append(Trajectory(uid=self._num_made, completion=completion, reward=reward))
        return TrajectoryGroup(
            prompt_id=0,
            prompt_text="list",
            prompt_token_ids=(1, 2, 3),
            trajectories=tuple(trajectories),
            searcher=0,
            sequence_number=0,
        )


def encode(texts: Sequence[str]) -> NDArray[np.float32]:
    """Random directions stand in for a sentence encoder, whose own time is not the buffer's."""
    vectors = np.random.default_rng(len(texts)).standard_normal((len(texts), DIMENSIONS), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def full_buffer(attacks: Attacks, *, num_held: int, likeness: Likeness | None) -> ReplayBuffer:
    """A buffer that holds as many as it can. Filled without comparing, which would take hours the old way."""
    buffer = ReplayBuffer(capacity=num_held, capacity_per_prompt=num_held, eviction="lowest-reward", likeness=None)
    while len(buffer) < num_held:
        buffer.insert(attacks.group(1000))
    buffer._likeness = likeness
    buffer.insert(attacks.group(2))  # unpacks and encodes what is held
    return buffer


def median_ms(action: Callable[[], object]) -> str:
    """CPU and wall time."""
    cpu, wall = [], []
    for _ in range(REPETITIONS):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        action()
        cpu.append(time.process_time() - cpu_s)
        wall.append(time.perf_counter() - wall_s)
    return f"{1e3 * statistics.median(cpu):8.1f} {1e3 * statistics.median(wall):8.1f}   (least {1e3 * min(wall):.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", type=int, default=100_000)
    num_held = parser.parse_args().held
    measures: dict[str, Callable[[], Likeness | None]] = {
        "keep": lambda: None,
        "edit-distance": lambda: EditDistance(tolerance=0.25),
        "embedding": lambda: EmbeddingCosine(encode, tolerance=0.4),
    }
    print(f"{num_held} held; milliseconds: CPU, wall")
    rng = np.random.default_rng(0)
    for name, make in measures.items():
        attacks = Attacks()
        buffer = full_buffer(attacks, num_held=num_held, likeness=make())
        groups = iter([attacks.group(GROUP) for _ in range(REPETITIONS)])
        print(f"insert 20, {name:24}", median_ms(lambda b=buffer, g=groups: b.insert(next(g))))
        if name == "keep":
            for prioritization in ("uniform", "reward-softmax", "residual"):
                for m in (0.0, 1.0):
                    sampler = MixtureSampler(on_policy_fraction=m, prioritization=prioritization)

                    def draw(buffer=buffer, sampler=sampler, attacks=attacks) -> None:
                        buffer.insert(attacks.group(2))
                        sampler.select(buffer, num_prompts=1, num_per_prompt=BATCH, policy_version=0, rng=rng)

                    print(f"draw 128, m = {m}, {prioritization:15}  ", median_ms(draw))


if __name__ == "__main__":
    main()

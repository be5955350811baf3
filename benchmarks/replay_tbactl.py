"""tbactl's part of benchmarks/replay.py: one size and shape in one process, so that memory is that buffer's alone.

    python -m benchmarks.replay_tbactl NUM_TRAJECTORIES NUM_PROMPTS NUM_CALLS   prints JSON

The buffer is filled to its capacity, then every insertion evicts. Before each draw a group is inserted; draws are
undone or committed with residuals in turn.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replay_data import (
    BATCH,
    GROUP,
    PROMPT_CHARACTERS,
    PROMPT_TOKENS,
    TEXT_CHARACTERS,
    VOCABULARY,
    Timings,
    make_rows,
    now_s,
    resident_bytes,
)
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.columns import NUMBERS, Columns
from tbactl.replay.samplers import MixtureSampler, Sampler
from tbactl.replay.snapshot import load_buffer, save_buffer
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.types import Completion, Trajectory, TrajectoryGroup

SAMPLERS: dict[str, Sampler] = {
    "recency": MixtureSampler(on_policy_fraction=1.0),
    "uniform": MixtureSampler(on_policy_fraction=0.0),
    "reward-softmax": MixtureSampler(on_policy_fraction=0.0, prioritization="reward-softmax"),
    "residual": MixtureSampler(on_policy_fraction=0.0, prioritization="residual"),
    "mixture": MixtureSampler(on_policy_fraction=0.5, prioritization="reward-softmax"),
}


class Searcher:
    """Makes groups: the same number of trajectories of each prompt in turn, a new policy version every 50 groups."""

    def __init__(self, num_prompts: int) -> None:
        self._rng = np.random.default_rng(0)
        self._num_prompts = num_prompts
        self._num_made = 0
        self._uid = 0
        letters = self._rng.integers(97, 123, size=1_000_000, dtype=np.uint8)
        letters[::6] = 32
        self._letters = letters.tobytes().decode()

    def group(self, size: int) -> TrajectoryGroup:
        """The next group."""
        prompt_id, version = self._num_made % self._num_prompts, self._num_made // 50
        self._num_made += 1
        rows = make_rows(size, self._rng)
        starts = self._rng.integers(len(self._letters) - TEXT_CHARACTERS, size=size).tolist()
        contents = zip(rows.token_ids.tolist(), rows.logprobs.tolist(), rows.rewards.tolist(), starts, strict=True)
        return TrajectoryGroup(
            prompt_id=prompt_id,
            prompt_text=self._letters[prompt_id : prompt_id + PROMPT_CHARACTERS],
            prompt_token_ids=tuple((prompt_id + i) % VOCABULARY for i in range(PROMPT_TOKENS)),
            trajectories=tuple(self._trajectory(*content, version=version) for content in contents),
            searcher=0,
            sequence_number=self._num_made,
        )

    def _trajectory(
        self, token_ids: list[int], logprobs: list[float], reward: float, start: int, *, version: int
    ) -> Trajectory:
        self._uid += 1
        completion = Completion(
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            text=self._letters[start : start + TEXT_CHARACTERS],
            finish_reason="stop",
            first_version=version,
            last_version=version,
        )
        return Trajectory(uid=self._uid, completion=completion, reward=reward)


def main() -> None:
    """Measure and print."""
    num_trajectories, num_prompts, num_calls = map(int, sys.argv[1:])
    print(json.dumps(measure(num_trajectories, num_prompts=num_prompts, num_calls=num_calls)))


def measure(num_trajectories: int, *, num_prompts: int, num_calls: int) -> dict[str, Any]:
    """All numbers of one buffer."""
    searcher = Searcher(num_prompts)
    searcher.group(GROUP)
    gc.collect()
    before = resident_bytes()
    buffer = ReplayBuffer(capacity=num_trajectories, capacity_per_prompt=num_trajectories)
    while len(buffer) < num_trajectories:
        buffer.insert(searcher.group(min(GROUP, num_trajectories // num_prompts)))
    gc.collect()
    memory = {"resident_bytes": resident_bytes() - before, "raw_bytes": raw_bytes(buffer)}
    return {
        "num_trajectories": num_trajectories,
        "num_prompts": num_prompts,
        "memory": memory | {"factor": round(memory["resident_bytes"] / memory["raw_bytes"], 3)},
        "insert_ms": {size: time_insertions(buffer, searcher, size=size, num_calls=num_calls) for size in (8, 20)},
        "draw_ms": {name: time_draws(buffer, searcher, sampler, num_calls) for name, sampler in SAMPLERS.items()},
        "snapshot_s": time_snapshot(buffer),
    }


def raw_bytes(buffer: ReplayBuffer) -> int:
    """What the data itself takes.

    Token ids as int32, log-probs as float32 (as engines make them), UTF-8 text, and the numbers of each trajectory;
    tokens and text of each prompt, once.
    """
    # Reward and first version are in the data too.
    numbers = sum(Columns.item_bytes(name) for name in NUMBERS if name not in ("reward", "first_version"))
    completions = sum(len(data) + numbers for data in buffer.columns.data)
    return completions + sum(len(p.prompt_token_bytes) + len(p.prompt_text.encode()) for p in buffer.prompts.values())


def time_insertions(buffer: ReplayBuffer, searcher: Searcher, *, size: int, num_calls: int) -> dict[str, float]:
    """Insertions of a group into the full buffer."""
    timings = Timings()
    for _ in range(num_calls):
        group = searcher.group(size)
        timings.measure(lambda group=group: buffer.insert(group))
    return timings.milliseconds()


def time_draws(
    buffer: ReplayBuffer, searcher: Searcher, sampler: Sampler, num_calls: int
) -> dict[str, dict[str, float]]:
    """Draws of BATCH trajectories: as a whole; the part that makes Python tuples of packed bytes; and all the rest."""
    num_prompts = 8 if len(buffer.prompts) >= 8 else 1
    rng = np.random.default_rng(1)
    draws, unpacking, choosing, undoing, committing = (Timings() for _ in range(5))
    with Stopwatch() as stopwatch:
        for number in range(num_calls + 1):
            buffer.insert(searcher.group(min(GROUP, len(buffer) // len(buffer.prompts))))
            stopwatch.seconds = 0.0
            start = now_s()
            groups = sampler.select(
                buffer, num_prompts=num_prompts, num_per_prompt=BATCH // num_prompts, policy_version=0, rng=rng
            )
            seconds = now_s() - start
            if number > 0:  # The first draw by weight from a big prompt sums up all its blocks.
                draws.add(seconds)
                unpacking.add(stopwatch.seconds)
                choosing.add(seconds - stopwatch.seconds)
            residuals = {t.uid: float(rng.normal()) for group in groups for t in group.trajectories}
            if number % 2:
                undoing.measure(buffer.undo_batch)
            else:
                committing.measure(lambda residuals=residuals: buffer.note_residuals(residuals))
                buffer.commit_batch()
            # Not while the next draw is timed.
            del groups, residuals
    return {
        "draw": draws.milliseconds(),
        "choose": choosing.milliseconds(),
        "unpack": unpacking.milliseconds(),
        "undo": undoing.milliseconds(),
        "note_residuals": committing.milliseconds(),
    }


class Stopwatch:
    """Sums the time that prompts take to unpack what was chosen."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._group = StoredPrompt.group

    def __enter__(self) -> Stopwatch:
        stopwatch, original = self, self._group

        def group(self: StoredPrompt, chosen: Sequence[int]) -> TrajectoryGroup:
            start = now_s()
            result = original(self, chosen)
            stopwatch.seconds += now_s() - start
            return result

        StoredPrompt.group = group
        return self

    def __exit__(self, *_: object) -> None:
        StoredPrompt.group = self._group


def time_snapshot(buffer: ReplayBuffer) -> dict[str, float]:
    """Seconds to write, flushed to disk, and to read; and the size."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        start = time.perf_counter()
        save_buffer(buffer, path)
        for file in path.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        saved = time.perf_counter()
        restored = load_buffer(path, capacity=buffer.capacity, capacity_per_prompt=buffer.capacity_per_prompt)
        loaded = time.perf_counter()
        assert len(restored) == len(buffer)
        size = sum(file.stat().st_size for file in path.iterdir())
    return {"save": round(saved - start, 3), "load": round(loaded - saved, 3), "bytes": size}


if __name__ == "__main__":
    main()

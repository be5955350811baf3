"""torchrl's part of benchmarks/replay.py; run by the Python of its own environment.

    .venv-torchrl/bin/python -m benchmarks.replay_torchrl NUM_TRAJECTORIES NUM_CALLS   prints JSON

Its prioritised buffer draws from all items alike, with replacement, and returns tensors. It holds tokens, log-probs and
numbers, no texts and no prompts, does not look for duplicates and overwrites the oldest.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchrl
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

from benchmarks.replay_data import BATCH, GROUP, NUM_TOKENS, Timings, make_rows, resident_bytes

NUMBERS_BYTES = 8 + 8 + 8 + 8 + 4 + 4 + 4


def main() -> None:
    """Measure and print."""
    num_trajectories, num_calls = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    print(json.dumps(measure(num_trajectories, num_calls=num_calls)))


def measure(num_trajectories: int, *, num_calls: int) -> dict[str, Any]:
    """All numbers of one buffer."""
    rng = np.random.default_rng(0)
    gc.collect()
    before = resident_bytes()
    buffer = make_buffer(num_trajectories, PrioritizedSampler(num_trajectories, alpha=1.0, beta=0.0))
    while len(buffer) < num_trajectories:
        buffer.extend(make_items(min(10_000, num_trajectories - len(buffer)), rng))
    gc.collect()
    memory = {
        "resident_bytes": resident_bytes() - before,
        "raw_bytes": num_trajectories * (8 * NUM_TOKENS + NUMBERS_BYTES),
    }
    prioritised = time_draws(buffer, rng, num_calls)
    random = make_buffer(num_trajectories, RandomSampler())
    random.extend(make_items(min(num_trajectories, 10_000), rng))
    return {
        "num_trajectories": num_trajectories,
        "versions": {"torchrl": torchrl.__version__, "torch": torch.__version__},
        "memory": memory | {"factor": round(memory["resident_bytes"] / memory["raw_bytes"], 3)},
        "insert_ms": {size: time_insertions(buffer, rng, size=size, num_calls=num_calls) for size in (8, 20)},
        "draw_ms": {"prioritised": prioritised, "random": time_draws(random, rng, num_calls)},
        "snapshot_s": time_snapshot(buffer),
    }


def make_buffer(num_trajectories: int, sampler: Any) -> TensorDictReplayBuffer:
    """An empty one."""
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(num_trajectories), sampler=sampler, batch_size=BATCH, priority_key="priority"
    )


def make_items(num_rows: int, rng: np.random.Generator) -> TensorDict:
    """Trajectories as torchrl takes them: a group is one call."""
    rows = make_rows(num_rows, rng)
    whole = torch.zeros(num_rows, dtype=torch.int64)
    small = torch.zeros(num_rows, dtype=torch.int32)
    return TensorDict(
        {
            "token_ids": torch.from_numpy(rows.token_ids),
            "logprobs": torch.from_numpy(rows.logprobs),
            "reward": torch.from_numpy(rows.rewards),
            "uid": whole,
            "insert_number": whole.clone(),
            "priority": torch.ones(num_rows),
            "first_version": small,
            "last_version": small.clone(),
            "num_draws": small.clone(),
        },
        batch_size=[num_rows],
    )


def time_insertions(
    buffer: TensorDictReplayBuffer, rng: np.random.Generator, *, size: int, num_calls: int
) -> dict[str, float]:
    """Insertions of a group into the full buffer."""
    timings = Timings()
    for _ in range(num_calls):
        items = make_items(size, rng)
        timings.measure(lambda items=items: buffer.extend(items))
    return timings.milliseconds()


def time_draws(buffer: TensorDictReplayBuffer, rng: np.random.Generator, num_calls: int) -> dict[str, dict[str, float]]:
    """Draws of BATCH; before each a group is inserted, after each priorities are set."""
    draws, updates = Timings(), Timings()
    for _ in range(num_calls):
        buffer.extend(make_items(GROUP, rng))
        batch = draws.measure(buffer.sample)
        batch["priority"] = torch.from_numpy(np.abs(rng.normal(size=BATCH)).astype(np.float32))
        updates.measure(lambda batch=batch: buffer.update_tensordict_priority(batch))
    return {"draw": draws.milliseconds(), "note_residuals": updates.milliseconds()}


def time_snapshot(buffer: TensorDictReplayBuffer) -> dict[str, float]:
    """Seconds to write and to read, and the size."""
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        buffer.dumps(directory)
        saved = time.perf_counter()
        buffer.loads(directory)
        loaded = time.perf_counter()
        size = sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
    return {"save": round(saved - start, 3), "load": round(loaded - saved, 3), "bytes": size}


if __name__ == "__main__":
    main()

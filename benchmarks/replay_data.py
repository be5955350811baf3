"""What both replay buffers are filled with, and how both are timed. Imports numpy alone: two environments share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")

NUM_TOKENS = 100
TEXT_CHARACTERS = 350
PROMPT_TOKENS = 76
PROMPT_CHARACTERS = 300
VOCABULARY = 50_000
BATCH = 160
GROUP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some trajectories as arrays: int32 and float32, shape (rows, NUM_TOKENS); rewards are normal."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float64]


def make_rows(num_rows: int, rng: np.random.Generator) -> Rows:
    """Random ones, all different."""
    shape = (num_rows, NUM_TOKENS)
    return Rows(
        token_ids=rng.integers(VOCABULARY, size=shape, dtype=np.int32),
        logprobs=-rng.random(shape, dtype=np.float32),
        rewards=rng.normal(size=num_rows),
    )


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise OSError("no VmRSS in /proc/self/status")


def now_s() -> float:
    """Seconds that this thread has computed: both buffers use one thread, and what else the machine does not count."""
    return time.thread_time()


class Timings:
    """Times of one action, in seconds of `now_s`."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def measure(self, action: Callable[[], Result]) -> Result:
        """Do it and note how long it took."""
        start = now_s()
        result = action()
        self._seconds.append(now_s() - start)
        return result

    def add(self, seconds: float) -> None:
        """Note a time measured elsewhere."""
        self._seconds.append(seconds)

    def milliseconds(self) -> dict[str, float]:
        """Fastest, median, 99th percentile and slowest."""
        values = 1e3 * np.array(self._seconds)
        return {
            "min": round(float(values.min()), 4),
            "p50": round(float(np.median(values)), 4),
            "p99": round(float(np.quantile(values, 0.99)), 4),
            "max": round(float(values.max()), 4),
        }

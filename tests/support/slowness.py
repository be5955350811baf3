"""How much slower this machine is than the one on which limits of computing time were set."""

from __future__ import annotations

import time

# What `_work` took there.
REFERENCE_S = 0.001
ATTEMPTS = 20


def slowness() -> float:
    """1 on that machine and on faster ones, 5 on one that takes five times as long. Others at work do not show in it:
    the shortest of several attempts counts."""
    return max(1.0, min(_work() for _ in range(ATTEMPTS)) / REFERENCE_S)


def _work() -> float:
    start_s = time.perf_counter()
    sums: dict[int, int] = {}
    for number in range(20_000):
        sums[number % 97] = sums.get(number % 97, 0) + number
    return time.perf_counter() - start_s

"""Time is passed in, so that tests can move it.

`monotonic_s` reads CLOCK_MONOTONIC, which all processes of one machine share: heartbeats written by a child can be
compared with the supervisor's own reading.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The three things a process asks of time."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back, comparable between processes of one machine."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for people only: never used to measure a duration."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait at least `seconds`."""
        ...


class SystemClock:
    """The real clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to, or when someone sleeps on it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

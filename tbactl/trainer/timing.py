"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tbactl.telemetry.trace import Trace, measured


class Stopwatch:
    """Adds up durations by name, and notes each in a trace. Not thread-safe."""

    def __init__(self, trace: Trace) -> None:
        self.seconds: dict[str, float] = {}
        self._trace = trace

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the duration of the block, also of one that fails."""
        start_s = time.monotonic()
        try:
            with measured(self._trace, name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start_s

    def take(self) -> dict[str, float]:
        """What was added up since the last call."""
        taken, self.seconds = self.seconds, {}
        return taken

"""metrics.jsonl: one line for each optimizer step, the source of everything shown later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tbactl.clock import Clock, SystemClock
from tbactl.config.layout import RunLayout
from tbactl.telemetry.lines import JsonLines

ELAPSED = "trainer/elapsed_s/value"
"""Seconds of training so far; also the line's `time_s`."""


class JsonlLogger:
    """Implements `Logger`. Line: {"step", "time_s", "wall_time", "metrics"}; a resumed run appends, repeating steps."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lines: JsonLines | None = None

    def start(self, run_directory: Path, resolved_config: dict[str, Any]) -> None:
        """Open the file, without what a killed process left of its last line."""
        del resolved_config
        self._lines = JsonLines(RunLayout(run_directory).metrics)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Append a line."""
        assert self._lines is not None, "start it first"
        wall_time = round(self._clock.wall_s(), 3)
        self._lines.append(
            {"step": step, "time_s": metrics.get(ELAPSED, 0.0), "wall_time": wall_time, "metrics": metrics}
        )

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()

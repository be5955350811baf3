"""trace.json: what each process of a run did when, in Chrome's trace format, which ui.perfetto.dev opens.

All processes append to one file, each a block of whole lines at a time. Times are of CLOCK_MONOTONIC, which they share.
A run that is killed leaves the list open at its end; both Perfetto and Chrome read that.

    {"name": "update", "ph": "X", "ts": 81234.5, "dur": 1210.0, "pid": 1, "tid": 0}     times in microseconds
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tbactl.config.layout import ProcessConfig, RunLayout

logger = logging.getLogger(__name__)

# Of the whole file: Perfetto opens that easily.
MAX_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**15
_FLUSH_S = 2.0
_JOINED_S = 1.0


class Trace(Protocol):
    """Where a process notes what it did."""

    def note(self, name: str, *, start_s: float, end_s: float) -> None:
        """Something that lasted from one time to another, on the monotonic clock."""
        ...

    def close(self) -> None:
        """Write what is not written yet."""
        ...


class NoTrace:
    """The trace of a run without one."""

    def note(self, name: str, *, start_s: float, end_s: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TraceFile:
    """One process's share of the file. Not thread-safe. What cannot be written ends the trace, not the process.

    Args:
        path: of the run; it is there, the supervisor has begun it.
        track: number of this process's track; a restarted process goes on with the one before it.
        name: of the track.
    """

    def __init__(self, path: Path, *, track: int, name: str) -> None:
        self._track = track
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._flushed_s = time.monotonic()
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._add({"name": "process_name", "ph": "M", "args": {"name": name}})
        self._add({"name": "process_sort_index", "ph": "M", "args": {"sort_index": track}})

    def note(self, name: str, *, start_s: float, end_s: float) -> None:
        self._add({"name": name, "ph": "X", "ts": _microseconds(start_s), "dur": _microseconds(end_s - start_s)})
        if self._num_bytes >= _BLOCK_BYTES or end_s - self._flushed_s >= _FLUSH_S:
            self._flush()
            self._flushed_s = end_s

    def close(self) -> None:
        self._flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, event: dict[str, Any]) -> None:
        line = json.dumps({**event, "pid": self._track, "tid": 0}).encode() + b",\n"
        self._lines.append(line)
        self._num_bytes += len(line)

    def _flush(self) -> None:
        block, self._lines, self._num_bytes = b"".join(self._lines), [], 0
        if self._descriptor is None or not block:
            return
        problem = f"it would be larger than {MAX_BYTES >> 20} MiB"
        try:
            if os.fstat(self._descriptor).st_size + len(block) <= MAX_BYTES:
                if os.write(self._descriptor, block) == len(block):
                    return
                problem = "only a part of the last lines fitted; the file may not be valid"
        except OSError as error:
            problem = str(error)
        logger.warning("no more is written to the trace: %s", problem)
        os.close(self._descriptor)
        self._descriptor = None


@contextmanager
def measured(trace: Trace, name: str) -> Iterator[None]:
    """Note how long the block lasts, also one that fails."""
    start_s = time.monotonic()
    try:
        yield
    finally:
        trace.note(name, start_s=start_s, end_s=time.monotonic())


class Activities:
    """Joins spans of one name that follow one another, of loops that turn many times a second."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._name = ""
        self._start_s = self._end_s = 0.0

    def note(self, name: str, *, start_s: float, end_s: float) -> None:
        """What the loop did last. A span is cut after about a second, so that a killed process leaves most of it."""
        if name != self._name or end_s - self._start_s > _JOINED_S:
            self.end()
            self._name, self._start_s = name, start_s
        self._end_s = end_s

    def end(self) -> None:
        """Nothing follows what was noted last."""
        if self._name:
            self._trace.note(self._name, start_s=self._start_s, end_s=self._end_s)
        self._name = ""


def process_trace(config: ProcessConfig) -> Trace:
    """The trace of a child process; of none where the run has no trace, or its file is on another machine."""
    if not config.run.logging.profile_trace:
        return NoTrace()
    num_before = 0 if config.role == "trainer" else config.run.trainer.num_ranks
    name = f"{config.role}-{config.index}"
    try:
        return TraceFile(config.layout.trace, track=num_before + config.index, name=name)
    except OSError as error:
        logger.warning("%s is not in the trace: %s", name, error)
        return NoTrace()


@contextmanager
def run_trace(layout: RunLayout, *, is_wanted: bool) -> Iterator[None]:
    """The supervisor's part: begin the file before any child starts, and close its list when none lives any more."""
    if not is_wanted:
        yield
        return
    layout.trace.write_bytes(b"[\n")
    try:
        yield
    finally:
        _close_list(layout.trace)


def _close_list(path: Path) -> None:
    end = {"name": "end of the run", "ph": "i", "s": "g", "ts": _microseconds(time.monotonic()), "pid": 0, "tid": 0}
    try:
        with path.open("ab") as file:
            file.write(json.dumps(end).encode() + b"\n]\n")
    except OSError as error:  # it can be opened all the same
        logger.warning("the end of the trace cannot be written: %s", error)


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)

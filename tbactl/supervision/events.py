"""events.jsonl: what the supervisor saw and did, one JSON object a line.

{"time": "2026-01-31T12:00:00.000+00:00", "elapsed_s": 12.3, "kind": "child_died", "process": "searcher-0",
 "details": {"pid": 4711, "how": "killed by SIGKILL"}}

The supervisor alone writes it; `tbactl watch` and the dashboard read it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tbactl.clock import Clock
from tbactl.dashboard.outlet import say
from tbactl.errors import is_out_of_space


class EventLog:
    """Appends events; each line is with the kernel when `record` returns, so a killed supervisor leaves whole lines.

    On a full disk events are lost, which is said once: the way down of a run must not depend on room for its history.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._file = path.open("a+b", buffering=0)
        self._is_full = False
        self._is_torn = _ends_within_a_line(self._file)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the supervisor's start."""
        return self._clock.monotonic_s() - self._started_s

    def record(self, kind: str, *, process: str = "supervisor", **details: Any) -> None:
        """Append one event."""
        event = {
            "time": utc(self._clock.wall_s()),
            "elapsed_s": round(self.elapsed_s, 3),
            "kind": kind,
            "process": process,
            "details": details,
        }
        # What is left of a line that did not fit spoils no other one.
        line = b"\n" * self._is_torn + json.dumps(event).encode() + b"\n"
        try:
            num_written = self._file.write(line)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            self._warn_once(str(error))
        else:
            self._is_torn = num_written < len(line)
            if self._is_torn:
                self._warn_once(os.strerror(errno.ENOSPC))

    def _warn_once(self, problem: str) -> None:
        if not self._is_full:
            say(f"warning: {self._file.name} cannot be written: {problem}; events are lost.", sys.stderr)
        self._is_full = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _ends_within_a_line(file: FileIO) -> bool:
    """Whether an earlier attempt's last line is torn."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def utc(wall_s: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")

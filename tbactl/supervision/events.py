"""events.jsonl: what the supervisor saw and did, one JSON object a line.

{"time": "2026-01-31T12:00:00.000+00:00", "elapsed_s": 12.3, "kind": "child_died", "process": "searcher-0",
 "details": {"pid": 4711, "how": "killed by SIGKILL"}}

The supervisor alone writes it; `tbactl watch` and the dashboard read it.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tbactl.clock import Clock
from tbactl.errors import is_out_of_space


class EventLog:
    """Appends events; each line is with the kernel when `record` returns, so a killed supervisor leaves whole lines.

    On a full disk events are lost, which is said once: the way down of a run must not depend on room for its history.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._file = path.open("ab", buffering=0)
        self._is_full = False

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
        try:
            self._file.write(json.dumps(event).encode() + b"\n")
        except OSError as error:
            if not is_out_of_space(error):
                raise
            if not self._is_full:
                print(f"warning: {self._file.name} cannot be written: {error}; events are lost.", file=sys.stderr)
            self._is_full = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def utc(wall_s: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")

"""Which process is meant: a pid alone may have been given to another one since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to a process's start (/proc/PID/stat, field 22); None when it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (SIGSTOP, Ctrl-Z) or a debugger."""
    fields = _stat(pid)
    return fields is not None and fields[0] in "Tt"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; None when the process is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def is_alive(pid: int, *, started: int) -> bool:
    """Whether the process `pid` that started at `started` ticks still runs."""
    return start_ticks(pid) == started


def processes_with(variable: str, value: str) -> Iterator[int]:
    """Pids of this user's processes that were started with an environment variable set to exactly this value."""
    wanted = f"{variable}={value}".encode()
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue  # it ended while we looked, or is not ours to read

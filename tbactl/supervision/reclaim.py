"""What dead runs left in /dev/shm, and who may remove it.

The supervisor of a run holds a lock on the owner file in its directory for as long as it lives. The kernel releases the
lock when the process ends, whatever ended it, so "the lock is free" means "the owner is dead", also across containers
that share /dev/shm and number their processes each in its own way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbactl.config.layout import SHM_PREFIX, SHM_ROOT, ShmLayout
from tbactl.supervision.identity import is_alive, processes_with, start_ticks
from tbactl.supervision.placement import RUN_VARIABLE
from tbactl.supervision.run_lock import try_lock

# A directory without an owner file is being made by somebody right now, unless it is older than this.
UNOWNED_GRACE_S = 60.0
# A killed process is gone when it next gets a core; one that the kernel cannot end is not waited for any longer.
VANISH_S, VANISH_POLL_S = 10.0, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleSegments:
    """A dead run's shared-memory directory."""

    directory: Path
    size_bytes: int
    run_directory: str
    """Where that run wrote, as far as its owner file says."""


def stale_segments(root: Path = SHM_ROOT) -> list[StaleSegments]:
    """Directories of this user whose owner is dead. Live runs and other users' runs are not among them."""
    return [_describe(directory) for directory in sorted(_own_directories(root)) if _owner_is_dead(directory)]


def reclaim(root: Path = SHM_ROOT) -> list[StaleSegments]:
    """Remove what dead runs of this user left, processes included, and say what it was."""
    found = stale_segments(root)
    for stale in found:
        end_processes_of(stale.directory)
        shutil.rmtree(stale.directory, ignore_errors=True)
    return found


def end_processes_of(shm_directory: Path, *, limit_s: float = VANISH_S) -> list[int]:
    """SIGKILL every process that was started for a run and still lives; returns their pids.

    Children end with their supervisor by themselves. What a task's reward or an engine starts in a session of its own
    may not; all of them carry the run's name in their environment.

    Args:
        shm_directory: the run's shared memory.
        limit_s: waits for their end, at most so long.
    """
    # Once it is gone, a pid may be given to a stranger, who is not waited for.
    started = {pid: start_ticks(pid) for pid in processes_with(RUN_VARIABLE, str(shm_directory))}
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left = {pid: ticks for pid, ticks in started.items() if ticks is not None}
    until_s = time.monotonic() + limit_s
    while any(is_alive(pid, started=ticks) for pid, ticks in left.items()) and time.monotonic() < until_s:
        time.sleep(VANISH_POLL_S)
    return list(started)


def _own_directories(root: Path) -> Iterator[Path]:
    prefix = f"{SHM_PREFIX}{os.getuid()}-"
    if not root.is_dir():
        return
    for entry in root.iterdir():
        is_directory = entry.is_dir() and not entry.is_symlink()
        with contextlib.suppress(FileNotFoundError):
            if is_directory and entry.name.startswith(prefix) and entry.stat().st_uid == os.getuid():
                yield entry


def _owner_is_dead(directory: Path) -> bool:
    try:
        descriptor = os.open(ShmLayout(directory).owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        try:
            return time.time() - directory.stat().st_mtime > UNOWNED_GRACE_S
        except FileNotFoundError:
            return False  # its owner has just removed it
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def _describe(directory: Path) -> StaleSegments:
    size = 0
    with contextlib.suppress(FileNotFoundError):  # somebody else removes it just now
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return StaleSegments(
        directory=directory, size_bytes=size, run_directory=_owner(directory).get("run_directory", "?")
    )


def _owner(directory: Path) -> dict[str, Any]:
    try:
        owner = json.loads(ShmLayout(directory).owner.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}

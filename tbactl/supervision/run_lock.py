"""One supervisor for a run directory, by a lock that the kernel releases when its holder ends, whatever ended it.

The process id in run.json tells the same within one machine and one container, and only once the record is written. The
lock is there from before a checkpoint is chosen, and wherever the file system shows the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tbactl.config.layout import RunLayout
from tbactl.dashboard.outlet import say
from tbactl.errors import ConfigError

# The file system knows no locks, or its lock server does not answer.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_HOLDER_BYTES = 200
# `tbactl run --resume RUN --dry-run` has it for a moment.
PATIENCE, RETRY_S = 7, 0.05


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file; False where another process (or descriptor) has it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def sole_supervisor(run_directory: Path) -> Iterator[None]:
    """Be the only process that runs this run, inside the block. The file stays: to remove it would free a second lock.

    Where the file system has no locks, a warning says so and the run goes on.

    Raises:
        ConfigError: another process runs it, or the lock file cannot be opened.
    """
    path = RunLayout(run_directory).lock
    descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
    try:
        is_locked = _lock(descriptor, run_directory, warns=True, tries=PATIENCE)
        _name_holder(descriptor, f"pid {os.getpid()} on {socket.gethostname()}" if is_locked else "")
        try:
            yield
        finally:
            _name_holder(descriptor, "")
    finally:
        os.close(descriptor)


def check_unsupervised(run_directory: Path) -> None:
    """Refuse a run that some process runs now. Writes nothing.

    Raises:
        ConfigError: one does.
    """
    path = RunLayout(run_directory).lock
    if path.exists():
        descriptor = _opened(path, os.O_RDWR)
        try:
            _lock(descriptor, run_directory, warns=False, tries=1)
        finally:
            os.close(descriptor)


def _name_holder(descriptor: int, holder: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk: it only makes another's message better
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise ConfigError(f"{path} is no file of tbactl's ({error.strerror}); remove it.") from None
        raise


def _lock(descriptor: int, run_directory: Path, *, warns: bool, tries: int) -> bool:
    """Lock it or refuse; False where the file system has no locks."""
    try:
        for left in reversed(range(tries)):
            if try_lock(descriptor):
                return True
            if left:
                time.sleep(RETRY_S)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        if warns:
            say(
                f"warning: the file system of {run_directory} has no locks ({error.strerror}): nothing keeps a second "
                f"`tbactl run --resume` out of this run while it lives.",
                sys.stderr,
            )
        return False
    holder = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip()
    raise ConfigError(
        f"{run_directory} is still running: another `tbactl run` holds it ({holder or 'it is just starting'}). Wait "
        f"for its end, or stop it there first: `tbactl stop {run_directory}`."
    )

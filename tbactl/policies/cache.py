"""Where files are kept that can be made again."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tbactl.errors import ConfigError

_POLL_PERIOD_S = 0.2


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/tbactl`, or `~/.cache/tbactl`."""
    # The specification of the variable says that a relative path is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tbactl"


@contextmanager
def exclusive(lock: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a lock file inside the block. The kernel frees it when its holder dies.

    Raises:
        ConfigError: the folder cannot be written, or another process has held the lock for too long.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise ConfigError(
            f"cannot write to the cache directory {lock.parent}: {error.strerror}; set XDG_CACHE_HOME to another one."
        ) from None
    with file:
        deadline = time.monotonic() + timeout_s
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise ConfigError(f"another process has held {lock} for {timeout_s:.0f} s; end it, or remove the file.")
            time.sleep(_POLL_PERIOD_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

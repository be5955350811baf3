"""File systems of a few megabytes, to be filled: mounted where that is permitted."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SIZE_MIB = 6
BALLAST = "ballast"
_CHUNK = b"\0" * 65_536


def can_mount() -> bool:
    """Whether this user may mount a file system here."""
    with tempfile.TemporaryDirectory() as directory, small_disk(Path(directory)) as is_mounted:
        return is_mounted


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """A file system of its own in a directory, or False where that is not permitted."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0700", "tbactl-chaos", str(directory)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False, timeout=10).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False, timeout=10)


def fill(directory: Path) -> None:
    """Write until the file system is full, to the last byte. Again: what was freed since."""
    with (directory / BALLAST).open("ab", buffering=0) as file:
        try:
            while True:
                file.write(_CHUNK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def empty(directory: Path) -> None:
    """The reverse of `fill`."""
    (directory / BALLAST).unlink(missing_ok=True)

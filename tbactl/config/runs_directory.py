"""Whether runs can be written where `runs_dir` says, found out before anything starts."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from tbactl.errors import CapacityError, ConfigError


def make_runs_directory(runs_dir: Path) -> None:
    """Make the directory and write a file there that vanishes at once.

    Raises:
        CapacityError: the disk is full.
        ConfigError: the directory cannot be made or written.
    """
    try:
        directory = runs_dir.expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x")
    # RuntimeError: an unknown ~user; ValueError: a NUL byte.
    except (OSError, RuntimeError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        kind = CapacityError if isinstance(error, OSError) and error.errno == errno.ENOSPC else ConfigError
        raise kind(
            f"runs_dir = {str(runs_dir)!r} cannot be used: {cause}; choose another: --set runs_dir=DIR."
        ) from None

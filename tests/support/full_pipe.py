"""A pipe that is full and that nobody reads: to a writer, a pager that is not scrolled or a stopped terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_pipe() -> Iterator[tuple[int, int, int]]:
    """The reader's end, the writer's end, and how many bytes are in it. The ends are closed at the end."""
    ours, theirs = os.pipe()
    num_bytes = 0
    os.set_blocking(theirs, False)
    try:
        while True:
            num_bytes += os.write(theirs, bytes(4096))
    except BlockingIOError:
        os.set_blocking(theirs, True)
    try:
        yield ours, theirs, num_bytes
    finally:
        os.close(ours)
        os.close(theirs)

"""The file of a ring: its layout, its creation, and what both of its ends have in common.

In native 8-byte words, then `capacity` bytes of data (each half of the header has one writer):

    word  0      magic        1 layout version      2 capacity in bytes
    word  8..10  write cursor      11 oversize records refused            stored by the writer only
    word 16..18  read cursor       19 corrupt   20 lost                   stored by the reader only

Cursors grow for ever, so that `write position - read position` is the number of bytes in use.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tbactl.errors import CapacityError, TbactlError

HEADER_BYTES = 256
RECORD_OVERHEAD_BYTES = 16
LAYOUT_VERSION = 2

_MAGIC = int.from_bytes(b"tbaring\0", "little")
CAPACITY_WORD = 2
WRITE_CURSOR_WORD, OVERSIZE_WORD = 8, 11
READ_CURSOR_WORD, CORRUPT_WORD, LOST_WORD = 16, 19, 20


class RingError(TbactlError, ValueError):
    """A file is not a ring of this layout, its cursors contradict each other, or its end is taken by a live process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStats:
    """What passed through a ring since it was created, over all restarts of both ends."""

    capacity_bytes: int
    used_bytes: int
    num_written: int
    num_read: int
    """Records the reader has left behind: returned, corrupt or lost."""
    num_bytes_written: int
    """Payloads with 16 bytes for each record."""
    num_oversize: int
    num_corrupt: int
    num_lost: int


class Cursor:
    """A record count and the position that belongs to it, moved together by one 8-byte store of the count.

    The position of count n stands in slot n % 2 and is stored before n, so that a process killed between the two stores
    leaves count and position in agreement.
    """

    def __init__(self, words: memoryview, first_word: int) -> None:
        self._words = words
        self._count = first_word
        self._positions = first_word + 1

    def load(self) -> tuple[int, int]:
        """(count, position), consistent although the owner may be moving them."""
        while True:
            count = self._words[self._count]
            position = self._words[self._positions + count % 2]
            # The owner overwrites this slot only after it has published count + 1.
            if self._words[self._count] == count:
                return count, position

    def store(self, count: int, position: int) -> None:
        self._words[self._positions + count % 2] = position
        self._words[self._count] = count


def create_ring(path: Path, *, capacity_bytes: int) -> None:
    """Create an empty ring file (mode 0600), with all its memory reserved, for one writer and one reader to open.

    Args:
        path: Where; must not exist. A missing parent directory is created with mode 0700.
        capacity_bytes: Room for records, each of which takes its payload and 16 bytes.

    Raises:
        CapacityError: The file system has not enough room.
        FileExistsError: `path` exists: rings belong to one run.
    """
    size = HEADER_BYTES + capacity_bytes
    assert capacity_bytes > RECORD_OVERHEAD_BYTES
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_free_space(path.parent, size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        _reserve(descriptor, size, directory=path.parent)
        header = struct.pack("=3Q", 0, LAYOUT_VERSION, capacity_bytes)
        os.pwrite(descriptor, header, 0)
        # The magic comes last: a file without it is not yet a ring.
        os.pwrite(descriptor, struct.pack("=Q", _MAGIC), 0)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def _check_free_space(directory: Path, needed: int) -> None:
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise _no_room(directory, needed=needed, free=free)


def _reserve(descriptor: int, size: int, *, directory: Path) -> None:
    # Without reservation, a tmpfs that fills up later would kill the writer by SIGBUS.
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        status = os.fstatvfs(descriptor)
        raise _no_room(directory, needed=size, free=status.f_bavail * status.f_frsize) from error


def _no_room(directory: Path, *, needed: int, free: int) -> CapacityError:
    return CapacityError(
        f"no room for a ring in {directory}: it needs {needed:,} bytes, {free:,} are free; lower "
        f"searchers.ring_capacity_bytes, use fewer searchers, free space there, or give a container more shared memory "
        f"(--shm-size)."
    )


def ring_stats(path: Path) -> RingStats:
    """Counters of a ring, read by one who owns neither of its ends.

    Raises:
        OSError: there is no such file.
        RingError: it is too short for a ring, or none.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise RingError(f"{path}: {len(header)} bytes are too few for a ring.")
    words = memoryview(header).cast("Q")
    if words[0] != _MAGIC or not words[CAPACITY_WORD]:
        raise RingError(f"{path}: not a ring (magic {words[0]:#x}, {words[CAPACITY_WORD]} bytes).")
    return _stats(words)


def _stats(words: memoryview) -> RingStats:
    num_read, read_position = Cursor(words, READ_CURSOR_WORD).load()
    num_written, write_position = Cursor(words, WRITE_CURSOR_WORD).load()
    capacity_bytes = words[CAPACITY_WORD]
    return RingStats(
        capacity_bytes=capacity_bytes,
        # The other end may have moved between the two loads.
        used_bytes=min(max(write_position - read_position, 0), capacity_bytes),
        num_written=num_written,
        num_read=num_read,
        num_bytes_written=write_position,
        num_oversize=words[OVERSIZE_WORD],
        num_corrupt=words[CORRUPT_WORD],
        num_lost=words[LOST_WORD],
    )


class RingEnd:
    """What writer and reader have in common: the mapping, its views, and the lock on their half of the header."""

    _own_word: int
    _role: str

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._is_open = False
        try:
            self._claim()
            self.capacity_bytes = self._check_header()
            self._map = mmap.mmap(self._descriptor, HEADER_BYTES + self.capacity_bytes)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._is_open = True
        self._view = memoryview(self._map)
        self._header = self._view[:HEADER_BYTES]
        self._words = self._header.cast("Q")
        self._data = self._view[HEADER_BYTES:]
        self._written = Cursor(self._words, WRITE_CURSOR_WORD)
        self._read = Cursor(self._words, READ_CURSOR_WORD)
        try:
            self._check_cursors()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map an existing ring.

        Raises:
            RingError: Not a ring, of another layout version, damaged, or this end is held by another live process.
            FileNotFoundError: There is no such file.
        """
        return cls(path)

    def _claim(self) -> None:
        # A record lock ends with the process, however it ends, and forked children do not inherit it.
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 8, self._own_word * 8)
        except (BlockingIOError, PermissionError) as error:
            raise RingError(
                f"{self.path}: another live process is already the {self._role} of this ring; it must end first."
            ) from error

    def _check_header(self) -> int:
        size = os.fstat(self._descriptor).st_size
        start = os.pread(self._descriptor, 24, 0)
        if len(start) < 24:
            raise RingError(f"{self.path}: {size} bytes are too few for a ring.")
        magic, layout, capacity = struct.unpack("=3Q", start)
        if magic != _MAGIC:
            raise RingError(f"{self.path}: not a ring (magic {magic:#x}).")
        if layout != LAYOUT_VERSION:
            raise RingError(f"{self.path}: ring layout {layout}; this tbactl knows {LAYOUT_VERSION}.")
        if size != HEADER_BYTES + capacity:
            raise RingError(f"{self.path}: {size} bytes, but a ring of {capacity} has {HEADER_BYTES + capacity}.")
        return capacity

    def _check_cursors(self) -> None:
        # The read cursor first: it cannot overtake a write cursor that is looked at later.
        num_read, read_position = self._read.load()
        num_written, write_position = self._written.load()
        if num_read > num_written or read_position > write_position:
            raise RingError(
                f"{self.path}: damaged cursors (written {num_written} records, {write_position} bytes; read {num_read} "
                f"records, {read_position} bytes); remove the ring."
            )

    @property
    def used_bytes(self) -> int:
        """Bytes of data not yet read."""
        _, read_position = self._read.load()
        _, write_position = self._written.load()
        # The other end may have moved between the two loads.
        return min(max(write_position - read_position, 0), self.capacity_bytes)

    @property
    def stats(self) -> RingStats:
        """Counters of both ends, for metrics."""
        return _stats(self._words)

    def close(self) -> None:
        """Unmap. The file and what it holds stay; whoever created it removes it."""
        if not self._is_open:
            return
        self._is_open = False
        for view in (self._words, self._header, self._data, self._view):
            view.release()
        self._map.close()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

"""A ring of byte records in shared memory: one writer process, one reader process, no lock, nothing lost.

Both ends map the same file (`ring_file.py`), which outlives them: a restarted reader finds what was not yet read, a
restarted writer goes on where the last complete record ended.

A record is (length u32, sequence number modulo 2**32 u32, XXH3 u64, payload), little-endian, at byte `position %
capacity`; any part of it may wrap. The checksum is that of the payload, seeded with the whole sequence number: what an
earlier lap left at the same place never passes for the record. The payload is stored first and the cursor last, by one
aligned 8-byte store: whoever dies in between leaves the other end unaffected. x86 keeps the two in order; on processors
that do not, a record seen too early fails its checksum and is read again.

An end takes its own cursor from the header each time, so that no exception can part what it believes from what it has
published. Of the other end's cursor it keeps the last value seen, which can only lag behind, and looks again when the
ring seems full or empty. `try_write` and `try_read` do the usual, a record in one piece, without a call of ours; what
wraps or is damaged goes the long way round.

Before this file on the way of a trajectory: `codec.py`. After it: the trainer's intake.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest

from tbactl.errors import CapacityError
from tbactl.ipc.ring_file import (
    CORRUPT_WORD,
    HEADER_BYTES,
    LOST_WORD,
    OVERSIZE_WORD,
    READ_CURSOR_WORD,
    RECORD_OVERHEAD_BYTES,
    WRITE_CURSOR_WORD,
    RingEnd,
    RingError,
    RingStats,
    create_ring,
)

__all__ = ["RingError", "RingReader", "RingStats", "RingWriter", "create_ring"]

logger = logging.getLogger(__name__)

_RECORD_HEADER = struct.Struct("<IIQ")
assert _RECORD_HEADER.size == RECORD_OVERHEAD_BYTES
_pack_header_into, _unpack_header_from = _RECORD_HEADER.pack_into, _RECORD_HEADER.unpack_from
_MAX_UINT32 = 2**32 - 1
_WRITE_POSITION_WORDS, _READ_POSITION_WORDS = WRITE_CURSOR_WORD + 1, READ_CURSOR_WORD + 1
# A record that looks damaged is looked at again: a weakly ordered processor may show the cursor before the payload.
_READ_ATTEMPTS = 3


class RingWriter(RingEnd):
    """The end that a searcher owns. Not thread-safe; one live writer for each ring.

    Example:
        with RingWriter.open(path) as ring:
            while not ring.try_write(payload):
                clock.sleep(0.01)
    """

    _own_word = WRITE_CURSOR_WORD
    _role = "writer"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.max_payload_bytes = min(self.capacity_bytes - RECORD_OVERHEAD_BYTES, _MAX_UINT32)
        """The largest payload that fits into the ring when it is empty."""
        self._file_bytes = HEADER_BYTES + self.capacity_bytes
        self._free_until = 0  # position up to which the reader is known to have left the ring; looked up when needed

    def try_write(self, payload: bytes) -> bool:
        """Append a record; False, with nothing changed, when there is no room for it yet.

        Raises:
            CapacityError: The payload is larger than the whole ring. Counted in `stats.num_oversize`.
        """
        length = len(payload)
        if length > self.max_payload_bytes:
            raise self._oversize(length)
        words = self._words
        count = words[WRITE_CURSOR_WORD]
        position = words[_WRITE_POSITION_WORDS + count % 2]
        end = position + RECORD_OVERHEAD_BYTES + length
        if end > self._free_until and end > self._look_up_free():
            return False
        checksum = xxh3_64_intdigest(payload, count)
        start = HEADER_BYTES + position % self.capacity_bytes
        payload_start = start + RECORD_OVERHEAD_BYTES
        payload_end = payload_start + length
        if payload_end <= self._file_bytes:
            _pack_header_into(self._map, start, length, count & _MAX_UINT32, checksum)
            self._map[payload_start:payload_end] = payload
        else:
            self._put_wrapped(position, _RECORD_HEADER.pack(length, count & _MAX_UINT32, checksum) + payload)
        count += 1
        words[_WRITE_POSITION_WORDS + count % 2] = end  # as Cursor.store: the position, then the count that publishes
        words[WRITE_CURSOR_WORD] = count
        return True

    def _oversize(self, length: int) -> CapacityError:
        self._words[OVERSIZE_WORD] += 1
        return CapacityError(
            f"a record of {length:,} bytes does not fit into ring {self.path.name}, which takes up to "
            f"{self.max_payload_bytes:,}; raise searchers.ring_capacity_bytes (now {self.capacity_bytes:,}) or "
            f"lower the tokens or completions of a group."
        )

    def _look_up_free(self) -> int:
        _, read_position = self._read.load()
        self._free_until = read_position + self.capacity_bytes
        return self._free_until

    def _put_wrapped(self, position: int, record: bytes) -> None:
        start = position % self.capacity_bytes
        until_wrap = self.capacity_bytes - start
        self._data[start:] = record[:until_wrap]
        self._data[: len(record) - until_wrap] = record[until_wrap:]


class RingReader(RingEnd):
    """The end that the trainer owns. Not thread-safe; one live reader for each ring.

    Example:
        with RingReader.open(path) as ring:
            while (payload := ring.try_read()) is not None:
                buffer.insert(decode(payload))
    """

    _own_word = READ_CURSOR_WORD
    _role = "reader"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._last_header_start = HEADER_BYTES + self.capacity_bytes - RECORD_OVERHEAD_BYTES
        self._num_written = 0  # known to be; looked up when needed

    @property
    def num_corrupt(self) -> int:
        """Records skipped because their checksum did not fit."""
        return self._words[CORRUPT_WORD]

    @property
    def num_lost(self) -> int:
        """Records given up because a damaged header hid where the next one starts."""
        return self._words[LOST_WORD]

    def try_read(self) -> bytes | None:
        """The oldest unread record, copied out of the ring; None when there is none.

        A damaged record is skipped, counted and logged. When its header is damaged too, all records written so far are
        given up and counted as lost, since the start of the next one cannot be known.
        """
        words = self._words
        count = words[READ_CURSOR_WORD]
        if count >= self._num_written and count == self._look_up_written():
            return None
        position = words[_READ_POSITION_WORDS + count % 2]
        start = HEADER_BYTES + position % self.capacity_bytes
        if start > self._last_header_start:
            return self._read_carefully()
        length, number, checksum = _unpack_header_from(self._map, start)
        start += RECORD_OVERHEAD_BYTES
        payload = self._map[start : start + length]  # shorter than `length` where it wraps
        if number != count & _MAX_UINT32 or len(payload) != length or xxh3_64_intdigest(payload, count) != checksum:
            return self._read_carefully()
        count += 1
        words[_READ_POSITION_WORDS + count % 2] = position + RECORD_OVERHEAD_BYTES + length  # as Cursor.store
        words[READ_CURSOR_WORD] = count
        return payload

    def _look_up_written(self) -> int:
        self._num_written, _ = self._written.load()
        return self._num_written

    def _read_carefully(self) -> bytes | None:
        while True:
            count, position = self._read.load()
            num_written, end = self._written.load()
            if count == num_written:
                return None
            for _ in range(_READ_ATTEMPTS):
                payload = self._intact_payload(count, position, end=end)
                if payload is not None:
                    self._read.store(count + 1, position + RECORD_OVERHEAD_BYTES + len(payload))
                    return payload
            self._skip_damage(count, position, num_written=num_written, end=end)

    def _intact_payload(self, count: int, position: int, *, end: int) -> bytes | None:
        length, number, checksum = self._record_header(position)
        if number != count & _MAX_UINT32 or position + RECORD_OVERHEAD_BYTES + length > end:
            return None
        payload = self._get(position + RECORD_OVERHEAD_BYTES, length)
        return payload if xxh3_64_intdigest(payload, count) == checksum else None

    def _skip_damage(self, count: int, position: int, *, num_written: int, end: int) -> None:
        length, number, _ = self._record_header(position)
        next_position = position + RECORD_OVERHEAD_BYTES + length
        has_next = self._is_record_start(count + 1, next_position, num_written=num_written, end=end)
        if number == count & _MAX_UINT32 and has_next:
            logger.warning("ring=%s record=%d skipped: its checksum does not fit", self.path.name, count)
            self._words[CORRUPT_WORD] += 1
            self._read.store(count + 1, next_position)
        else:
            num_lost = num_written - count
            logger.error("ring=%s record=%d has a damaged header; num_lost=%d", self.path.name, count, num_lost)
            self._words[LOST_WORD] += num_lost
            self._read.store(num_written, end)

    def _is_record_start(self, count: int, position: int, *, num_written: int, end: int) -> bool:
        if count == num_written:
            return position == end
        return position + RECORD_OVERHEAD_BYTES <= end and self._record_header(position)[1] == count & _MAX_UINT32

    def _record_header(self, position: int) -> tuple[int, int, int]:
        return _RECORD_HEADER.unpack(self._get(position, RECORD_OVERHEAD_BYTES))

    def _get(self, position: int, length: int) -> bytes:
        start = position % self.capacity_bytes
        until_wrap = self.capacity_bytes - start
        if length <= until_wrap:
            return bytes(self._data[start : start + length])
        return bytes(self._data[start:]) + bytes(self._data[: length - until_wrap])

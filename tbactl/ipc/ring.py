"""A ring of byte records in shared memory: one writer process, one reader process, no lock, nothing lost.

Both ends map the same file (`ring_file.py`), which outlives them: a restarted reader finds what was not yet read, a
restarted writer goes on where the last complete record ended.

A record is (length u32, CRC32 u32, sequence number u64, payload), little-endian, at byte `position % capacity`; any
part of it may wrap. The payload is stored first and the cursor last, by one aligned 8-byte store: whoever dies in
between leaves the other end unaffected. x86 keeps the two in order; on processors that do not, a record seen too early
fails its CRC and is read again.

Before this file on the way of a trajectory: `codec.py`. After it: the trainer's intake.
"""

from __future__ import annotations

import logging
import struct
import zlib

from tbactl.errors import CapacityError
from tbactl.ipc.ring_file import (
    CORRUPT_WORD,
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
_MAX_LENGTH = 2**32 - 1
# A record that looks damaged is looked at again: a weakly ordered processor may show the cursor before the payload.
_READ_ATTEMPTS = 3


def _checksum(length: int, sequence_number: int, payload: bytes) -> int:
    # Over length and sequence number too, and never 0 for an all-zero record.
    return zlib.crc32(payload, zlib.crc32(struct.pack("<IQ", length, sequence_number)))


class RingWriter(RingEnd):
    """The end that a searcher owns. Not thread-safe; one live writer for each ring.

    Example:
        with RingWriter.open(path) as ring:
            while not ring.try_write(payload):
                clock.sleep(0.01)
    """

    _own_word = WRITE_CURSOR_WORD
    _role = "writer"

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that fits into the ring when it is empty."""
        return min(self.capacity_bytes - RECORD_OVERHEAD_BYTES, _MAX_LENGTH)

    def try_write(self, payload: bytes) -> bool:
        """Append a record; False, with nothing changed, when there is no room for it yet.

        Raises:
            CapacityError: The payload is larger than the whole ring. Counted in `stats.num_oversize`.
        """
        if len(payload) > self.max_payload_bytes:
            self._words[OVERSIZE_WORD] += 1
            raise CapacityError(
                f"a record of {len(payload):,} bytes does not fit into ring {self.path.name}, which takes up to "
                f"{self.max_payload_bytes:,}; raise searchers.ring_capacity_bytes (now {self.capacity_bytes:,}) or "
                f"lower the tokens or completions of a group."
            )
        _, read_position = self._read.load()
        count, position = self._written.load()
        end = position + RECORD_OVERHEAD_BYTES + len(payload)
        if end - read_position > self.capacity_bytes:
            return False
        header = _RECORD_HEADER.pack(len(payload), _checksum(len(payload), count, payload), count)
        self._put(position, header)
        self._put(position + RECORD_OVERHEAD_BYTES, payload)
        self._written.store(count + 1, end)
        return True

    def _put(self, position: int, data: bytes) -> None:
        start = position % self.capacity_bytes
        until_wrap = self.capacity_bytes - start
        if len(data) <= until_wrap:
            self._data[start : start + len(data)] = data
        else:
            self._data[start:] = data[:until_wrap]
            self._data[: len(data) - until_wrap] = data[until_wrap:]


class RingReader(RingEnd):
    """The end that the trainer owns. Not thread-safe; one live reader for each ring.

    Example:
        with RingReader.open(path) as ring:
            while (payload := ring.try_read()) is not None:
                buffer.insert(decode(payload))
    """

    _own_word = READ_CURSOR_WORD
    _role = "reader"

    @property
    def num_corrupt(self) -> int:
        """Records skipped because their CRC did not fit."""
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
        length, checksum, sequence_number = self._record_header(position)
        if sequence_number != count or position + RECORD_OVERHEAD_BYTES + length > end:
            return None
        payload = self._get(position + RECORD_OVERHEAD_BYTES, length)
        return payload if _checksum(length, count, payload) == checksum else None

    def _skip_damage(self, count: int, position: int, *, num_written: int, end: int) -> None:
        length, _, sequence_number = self._record_header(position)
        next_position = position + RECORD_OVERHEAD_BYTES + length
        has_next = self._is_record_start(count + 1, next_position, num_written=num_written, end=end)
        if sequence_number == count and has_next:
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
        return position + RECORD_OVERHEAD_BYTES <= end and self._record_header(position)[2] == count

    def _record_header(self, position: int) -> tuple[int, int, int]:
        return _RECORD_HEADER.unpack(self._get(position, RECORD_OVERHEAD_BYTES))

    def _get(self, position: int, length: int) -> bytes:
        start = position % self.capacity_bytes
        until_wrap = self.capacity_bytes - start
        if length <= until_wrap:
            return bytes(self._data[start : start + length])
        return bytes(self._data[start:]) + bytes(self._data[: length - until_wrap])

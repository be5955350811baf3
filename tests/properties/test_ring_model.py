import shutil
import tempfile
from collections import deque
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tbactl.errors import CapacityError
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.ipc.ring_file import HEADER_BYTES, RECORD_OVERHEAD_BYTES


class RingMachine(RuleBasedStateMachine):
    """A ring behaves as a queue of bounded size in bytes, over wrap-around, reopening and damage."""

    @initialize(capacity=st.integers(RECORD_OVERHEAD_BYTES + 1, 200))
    def create(self, capacity: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "ring"
        self.capacity = capacity
        create_ring(self.path, capacity_bytes=capacity)
        self.writer = RingWriter.open(self.path)
        self.reader = RingReader.open(self.path)
        self.queue: deque[tuple[bytes, bool]] = deque()  # payload, is intact
        self.used = self.written = self.corrupt = self.oversize = 0

    @rule(payload=st.binary(max_size=210))
    def write(self, payload: bytes) -> None:
        size = len(payload) + RECORD_OVERHEAD_BYTES
        if size > self.capacity:
            with pytest.raises(CapacityError):
                self.writer.try_write(payload)
            self.oversize += 1
            return
        fits = self.used + size <= self.capacity
        assert self.writer.try_write(payload) == fits
        if fits:
            self.queue.append((payload, True))
            self.used += size
            self.written += 1

    @rule()
    def read(self) -> None:
        expected = None
        while self.queue and expected is None:
            payload, is_intact = self.queue.popleft()
            self.used -= RECORD_OVERHEAD_BYTES + len(payload)
            if is_intact:
                expected = payload
            else:
                self.corrupt += 1
        assert self.reader.try_read() == expected

    @rule(position=st.integers(0))
    def damage_newest(self, position: int) -> None:
        if not self.queue or self.queue[-1] == (b"", True) or not self.queue[-1][1]:
            return
        payload, _ = self.queue[-1]
        end = self.writer.stats.num_bytes_written
        offset = (end - 1 - position % len(payload)) % self.capacity
        with self.path.open("r+b") as file:
            file.seek(HEADER_BYTES + offset)
            byte = file.read(1)[0]
            file.seek(HEADER_BYTES + offset)
            file.write(bytes([byte ^ 0x40]))
        self.queue[-1] = (payload, False)

    @rule()
    def reopen_writer(self) -> None:
        self.writer.close()
        self.writer = RingWriter.open(self.path)

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = RingReader.open(self.path)

    @invariant()
    def counters_agree(self) -> None:
        stats = self.writer.stats
        assert stats == self.reader.stats
        assert stats.used_bytes == self.used
        assert stats.num_written == self.written
        assert stats.num_read == self.written - len(self.queue)
        assert stats.num_oversize == self.oversize
        assert (stats.num_corrupt, stats.num_lost) == (self.corrupt, 0)

    def teardown(self) -> None:
        self.writer.close()
        self.reader.close()
        shutil.rmtree(self.directory)


TestRingAgainstDeque = RingMachine.TestCase
TestRingAgainstDeque.settings = settings(max_examples=60, stateful_step_count=40)

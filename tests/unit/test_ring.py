import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbactl.errors import CapacityError
from tbactl.ipc.ring import RingError, RingReader, RingWriter, create_ring
from tbactl.ipc.ring_file import HEADER_BYTES, RECORD_OVERHEAD_BYTES


@pytest.fixture
def ring_path(tmp_path: Path) -> Path:
    path = tmp_path / "rings" / "searcher-0.ring"
    create_ring(path, capacity_bytes=4096)
    return path


def small_ring(tmp_path: Path, *, capacity_bytes: int) -> Path:
    path = tmp_path / "small.ring"
    create_ring(path, capacity_bytes=capacity_bytes)
    return path


def corrupt(path: Path, offset: int) -> None:
    """Flip all bits of one byte of the ring's data."""
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + offset)
        byte = file.read(1)[0]
        file.seek(HEADER_BYTES + offset)
        file.write(bytes([byte ^ 0xFF]))


def read_all(reader: RingReader) -> list[bytes]:
    return list(iter(reader.try_read, None))


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_create_gives_private_file_in_private_directory(ring_path: Path):
    assert stat.S_IMODE(ring_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ring_path.parent.stat().st_mode) == 0o700
    assert ring_path.stat().st_size == HEADER_BYTES + 4096


def test_create_under_open_umask_stays_private(tmp_path: Path):
    previous = os.umask(0)
    try:
        path = small_ring(tmp_path, capacity_bytes=64)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_create_reserves_the_memory(ring_path: Path):
    assert ring_path.stat().st_blocks * 512 >= HEADER_BYTES + 4096


def test_create_existing_path_is_refused_and_left_alone(ring_path: Path):
    before = ring_path.read_bytes()
    with pytest.raises(FileExistsError):
        create_ring(ring_path, capacity_bytes=8192)
    assert ring_path.read_bytes() == before


def test_create_more_than_the_file_system_holds_says_need_and_have(tmp_path: Path):
    with pytest.raises(CapacityError, match=r"needs 1,125,899,906,842,880 bytes, [\d,]+ are free.*ring_capacity_bytes"):
        create_ring(tmp_path / "huge.ring", capacity_bytes=2**50)
    assert list(tmp_path.iterdir()) == []


def test_create_when_reservation_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match="no room for a ring"):
        create_ring(tmp_path / "late.ring", capacity_bytes=4096)
    assert list(tmp_path.iterdir()) == []


def test_records_come_out_in_order_and_empty_ring_gives_none(ring_path: Path):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        assert reader.try_read() is None
        for payload in (b"first", b"", b"third"):
            assert writer.try_write(payload)
        assert read_all(reader) == [b"first", b"", b"third"]
        assert (writer.stats.num_written, writer.stats.num_read) == (3, 3)
        assert writer.stats.num_bytes_written == 10 + 3 * RECORD_OVERHEAD_BYTES


def test_full_ring_refuses_without_change_and_takes_again_after_a_read(tmp_path: Path):
    path = small_ring(tmp_path, capacity_bytes=2 * (RECORD_OVERHEAD_BYTES + 10))
    with RingWriter.open(path) as writer, RingReader.open(path) as reader:
        assert writer.try_write(b"a" * 10)
        assert writer.used_bytes == writer.capacity_bytes / 2
        assert writer.try_write(b"b" * 10)
        assert writer.used_bytes == writer.capacity_bytes
        assert not writer.try_write(b"")
        assert reader.try_read() == b"a" * 10
        assert writer.try_write(b"c" * 10)
        assert read_all(reader) == [b"b" * 10, b"c" * 10]


@pytest.mark.fault("I-67")
def test_oversize_record_is_a_counted_error_and_the_ring_goes_on(tmp_path: Path):
    path = small_ring(tmp_path, capacity_bytes=100)
    with RingWriter.open(path) as writer, RingReader.open(path) as reader:
        with pytest.raises(
            CapacityError, match=r"85 bytes .* up to 84; raise searchers.ring_capacity_bytes \(now 100\)"
        ):
            writer.try_write(b"x" * 85)
        assert writer.stats.num_oversize == 1
        assert writer.try_write(b"x" * 84)
        assert reader.try_read() == b"x" * 84


def test_both_ends_reopened_go_on_where_they_were(ring_path: Path):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        for number in range(4):
            writer.try_write(b"%d" % number)
        assert reader.try_read() == b"0"
    with RingWriter.open(ring_path) as writer:
        writer.try_write(b"4")
    with RingReader.open(ring_path) as reader:
        assert read_all(reader) == [b"1", b"2", b"3", b"4"]
        assert reader.stats.num_written == reader.stats.num_read == 5


@pytest.mark.fault("I-67")
def test_flipped_payload_byte_skips_that_record_only_and_counts_it(ring_path: Path, caplog: pytest.LogCaptureFixture):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        for payload in (b"aaaa", b"bbbb", b"cccc"):
            writer.try_write(payload)
        corrupt(ring_path, 20 + RECORD_OVERHEAD_BYTES)
        assert read_all(reader) == [b"aaaa", b"cccc"]
        assert (reader.num_corrupt, reader.num_lost) == (1, 0)
        assert "record=1 skipped" in caplog.text


def test_flipped_payload_byte_of_the_last_record_is_skipped_and_later_ones_arrive(ring_path: Path):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        writer.try_write(b"aaaa")
        corrupt(ring_path, RECORD_OVERHEAD_BYTES)
        assert reader.try_read() is None
        writer.try_write(b"bbbb")
        assert reader.try_read() == b"bbbb"
        assert (reader.num_corrupt, reader.num_lost) == (1, 0)


@pytest.mark.parametrize("offset", range(RECORD_OVERHEAD_BYTES))
def test_any_flipped_header_byte_is_noticed_and_what_is_written_later_arrives(ring_path: Path, offset: int):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        for payload in (b"aaaa", b"bbbb", b"cccc"):
            writer.try_write(payload)
        corrupt(ring_path, 20 + offset)
        before = read_all(reader)
        writer.try_write(b"dddd")
        assert reader.try_read() == b"dddd"
        is_checksum = offset >= 8
        assert before == ([b"aaaa", b"cccc"] if is_checksum else [b"aaaa"])
        assert (reader.num_corrupt, reader.num_lost) == ((1, 0) if is_checksum else (0, 2))
        assert reader.used_bytes == 0


@pytest.mark.fault("I-67")
def test_record_of_an_earlier_lap_under_the_number_of_a_later_one_is_damaged(tmp_path: Path):
    path = small_ring(tmp_path, capacity_bytes=RECORD_OVERHEAD_BYTES + 4)
    with RingWriter.open(path) as writer, RingReader.open(path) as reader:
        writer.try_write(b"lap0")
        stale = bytearray(path.read_bytes()[HEADER_BYTES:])
        assert reader.try_read() == b"lap0"
        writer.try_write(b"lap1")
        stale[4:8] = (1).to_bytes(4, "little")
        with path.open("r+b") as file:
            file.seek(HEADER_BYTES)
            file.write(stale)
        assert reader.try_read() is None
        assert (reader.num_corrupt, reader.num_lost) == (1, 0)


@pytest.mark.fault("I-67")
def test_records_given_up_that_were_written_after_the_last_look_do_not_come_back(ring_path: Path):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        for payload in (b"aaaa", b"bbbb"):
            writer.try_write(payload)
        assert reader.try_read() == b"aaaa"  # it knows of two
        writer.try_write(b"cccc")
        corrupt(ring_path, 20)
        assert reader.try_read() is reader.try_read() is None
        assert (reader.num_corrupt, reader.num_lost) == (0, 2)
        writer.try_write(b"dddd")
        assert read_all(reader) == [b"dddd"]


class InterruptingWords:
    """Forwards to the mapped words until the chosen store, and raises instead of making it."""

    def __init__(self, words: memoryview, *, stores: int) -> None:
        self.words, self.stores = words, stores

    def __getitem__(self, index: int) -> int:
        return self.words[index]

    def __setitem__(self, index: int, value: int) -> None:
        if self.stores == 0:
            raise KeyboardInterrupt
        self.stores -= 1
        self.words[index] = value


@pytest.mark.fault("I-67")
@pytest.mark.parametrize("stores", [0, 1])
def test_interrupted_end_goes_on_where_it_was(ring_path: Path, monkeypatch: pytest.MonkeyPatch, stores: int):
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        writer.try_write(b"first")
        with monkeypatch.context() as patched:
            patched.setattr(writer, "_words", InterruptingWords(writer._words, stores=stores))
            with pytest.raises(KeyboardInterrupt):
                writer.try_write(b"interrupted")
        writer.try_write(b"second")
        assert reader.try_read() == b"first"
        with monkeypatch.context() as patched:
            patched.setattr(reader, "_words", InterruptingWords(reader._words, stores=stores))
            with pytest.raises(KeyboardInterrupt):
                reader.try_read()
        assert read_all(reader) == [b"second"]
        assert reader.num_corrupt == reader.num_lost == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too few"),
        (b"x" * 5000, "not a ring"),
    ],
)
def test_open_of_what_is_no_ring_is_refused(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(RingError, match=message):
        RingReader.open(path)


def test_open_of_another_layout_a_truncated_file_or_crossed_cursors_is_refused(ring_path: Path):
    good = ring_path.read_bytes()
    for changed, message in (
        (good[:8] + b"\x09" + good[9:], "ring layout 9"),
        (good[:-1], "bytes, but a ring of 4096"),
        (good[: 16 * 8] + b"\x05" + good[16 * 8 + 1 :], "damaged cursors"),
    ):
        ring_path.write_bytes(changed)
        with pytest.raises(RingError, match=message):
            RingReader.open(ring_path)


@pytest.mark.fault("I-64")
def test_close_twice_is_allowed(ring_path: Path):
    writer = RingWriter.open(ring_path)
    writer.close()
    writer.close()


WRITE_FOR_EVER = """
import sys
import time
from pathlib import Path
from tbactl.ipc.ring import RingWriter

writer = RingWriter.open(Path(sys.argv[1]))
number = writer.stats.num_written
print("ready", flush=True)
while True:
    payload = b"%08d" % number * (1 + number % 40)
    while not writer.try_write(payload):
        time.sleep(0.001)
    number += 1
"""

DIE_WHILE_PUBLISHING = """
import os, signal, sys
from pathlib import Path
from tbactl.ipc.ring import RingWriter

class DeadlyWords:
    # Forwards to the mapped words until the chosen store, and dies instead of making it.
    def __init__(self, words, stores):
        self.words, self.stores = words, stores
    def __getitem__(self, index):
        return self.words[index]
    def __setitem__(self, index, value):
        if self.stores == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.stores -= 1
        self.words[index] = value

writer = RingWriter.open(Path(sys.argv[1]))
assert writer.try_write(b"complete")
writer._words = DeadlyWords(writer._words, int(sys.argv[2]))
writer.try_write(b"partial!")
"""


@pytest.mark.fault("I-67")
def test_writer_killed_again_and_again_leaves_a_gapless_prefix(tmp_path: Path):
    path = small_ring(tmp_path, capacity_bytes=1500)
    received = 0
    with RingReader.open(path) as reader:
        for _round in range(6):
            process = run_python(WRITE_FOR_EVER, path)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            # The writer is mid-write nearly always: the ring is small and it never rests.
            target = received + 400 + 37 * _round
            while received < target:
                payload = reader.try_read()
                if payload is None:
                    time.sleep(0.0005)
                    continue
                assert payload == b"%08d" % received * (1 + received % 40)
                received += 1
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            process.stdout.close()
        for payload in read_all(reader):
            assert payload == b"%08d" % received * (1 + received % 40)
            received += 1
        assert reader.num_corrupt == reader.num_lost == 0
        assert reader.stats.num_written == received


@pytest.mark.fault("I-67")
@pytest.mark.parametrize("stores_before_death", [0, 1])
def test_writer_killed_between_payload_and_cursor_leaves_no_trace(ring_path: Path, stores_before_death: int):
    process = run_python(DIE_WHILE_PUBLISHING, ring_path, stores_before_death)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, output
    assert b"partial!" in ring_path.read_bytes()
    with RingWriter.open(ring_path) as writer, RingReader.open(ring_path) as reader:
        assert reader.try_read() == b"complete"
        assert reader.try_read() is None
        assert writer.try_write(b"after")
        assert reader.try_read() == b"after"
        assert reader.stats.num_written == 2
        assert reader.num_corrupt == reader.num_lost == 0


@pytest.mark.fault("I-14")
def test_second_live_writer_is_refused_and_may_come_after_a_kill(ring_path: Path):
    process = run_python(WRITE_FOR_EVER, ring_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(RingError, match="already the writer"):
            RingWriter.open(ring_path)
        RingReader.open(ring_path).close()
    finally:
        process.kill()
        process.wait(timeout=60)
        process.stdout.close()
    RingWriter.open(ring_path).close()

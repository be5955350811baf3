"""Damaged bytes on the way of a trajectory and in a buffer's snapshot: what comes out was put in, or is refused."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from tbactl.errors import CheckpointError
from tbactl.ipc.codec import CodecError, decode, encode
from tbactl.ipc.ring import RingError, RingReader, RingWriter, create_ring
from tbactl.ipc.ring_file import HEADER_BYTES, RECORD_OVERHEAD_BYTES
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import DATA_NAME, STATE_NAME, load_buffer, save_buffer
from tbactl.types import TrajectoryGroup
from tests.properties.test_codec_round_trip import groups
from tests.support.corpus import corpus_first
from tests.support.replay_groups import make_group

CAPACITY = 4096
DAMAGES = st.lists(
    st.tuples(st.integers(0, CAPACITY + HEADER_BYTES - 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=3
)


@corpus_first("records")
@given(data=st.binary(max_size=300).map(lambda tail: b"TBAC\x01\x01" + tail))
@settings(max_examples=150)
def test_any_bytes_behind_a_good_prefix_are_refused_or_a_record_that_encodes_to_the_same(data: bytes):
    try:
        record = decode(data)
    except CodecError:
        return
    assert decode(encode(record)) == record


@given(st.lists(groups, min_size=1, max_size=4), DAMAGES, st.integers(0, 3))
@settings(max_examples=100)
def test_any_damage_to_a_ring_leaves_records_that_were_written_or_a_ring_error(
    records: list[TrajectoryGroup], damages: list[tuple[int, bytes]], num_read_before: int
):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "ring")
        create_ring(path, capacity_bytes=CAPACITY)
        payloads = [encode(record) for record in records]
        with RingWriter.open(path) as writer, RingReader.open(path) as reader:
            for number, payload in enumerate(payloads):
                if len(payload) + RECORD_OVERHEAD_BYTES <= CAPACITY and writer.try_write(payload):
                    assert number >= num_read_before or reader.try_read() == payload
        _damage(path, damages)
        try:
            with RingReader.open(path) as reader:
                left = _read_all(reader)
        except RingError:
            return
    _assert_subsequence(left, payloads)
    for payload in left:
        assert decode(payload) == records[payloads.index(payload)]


def _damage(path: Path, damages: list[tuple[int, bytes]]) -> None:
    with path.open("r+b") as file:
        for offset, data in damages:
            file.seek(offset)
            file.write(data[: CAPACITY + HEADER_BYTES - offset])


def _read_all(reader: RingReader) -> list[bytes]:
    found: list[bytes] = []
    while (payload := reader.try_read()) is not None:
        found.append(payload)
        assert len(found) < 1000, "a damaged ring gives records without end"
    return found


def _assert_subsequence(found: list[bytes], written: list[bytes]) -> None:
    rest = iter(written)
    for payload in found:
        assert any(payload == candidate for candidate in rest), "a record that was never written, or out of order"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory) -> Path:
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    for prompt_id in range(3):
        buffer.insert(make_group(prompt_id, range(3), version=prompt_id, rewards=[0.1, 0.2, 0.3]))
    directory = tmp_path_factory.mktemp("snapshot") / "replay"
    save_buffer(buffer, directory)
    return directory


@given(offset=st.integers(0), data=st.binary(min_size=1, max_size=12), cut=st.integers(0, 2000))
@settings(max_examples=300)
def test_any_change_of_a_snapshot_whose_checksum_was_mended_is_refused_or_a_consistent_buffer(
    snapshot: Path, offset: int, data: bytes, cut: int
):
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "replay")
        shutil.copytree(snapshot, directory)
        content = bytearray((directory / DATA_NAME).read_bytes())
        position = offset % len(content)
        content[position : position + len(data)] = data
        if cut < len(content):
            del content[cut or len(content) :]
        (directory / DATA_NAME).write_bytes(content)
        state = msgspec.json.decode((directory / STATE_NAME).read_bytes())
        state |= {"data_bytes": len(content), "data_crc32": zlib.crc32(content)}
        (directory / STATE_NAME).write_bytes(msgspec.json.encode(state))
        try:
            buffer = load_buffer(directory, capacity=1000, capacity_per_prompt=1000)
        except CheckpointError:
            return
        assert sum(1 for _ in buffer.trajectories()) == len(buffer)

"""The replay buffer on disk, exactly: after `load_buffer`, the same generator makes the same draws and evictions.

A directory of two files: `trajectories.msgpack`, a record for each prompt (length u32 little-endian, then msgpack), and
`buffer.json` with the counters, the orders of drawing, and length and CRC32 of the other file. Never pickle. Whoever
calls makes the directory appear atomically with the rest of the checkpoint.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tbactl.errors import CheckpointError
from tbactl.replay.buffer import MIN_GROUP_SIZE, BufferCounters, ReplayBuffer
from tbactl.replay.entries import StoredPrompt, StoredTrajectory
from tbactl.replay.prompt_orders import RecencyOrder, Urn
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)

# Raise it with every change of the fields below, of StoredTrajectory or of TrajectoryGroup.
LAYOUT_VERSION = 1
DATA_NAME = "trajectories.msgpack"
STATE_NAME = "buffer.json"

_LENGTH = struct.Struct("<I")
_READ_BLOCK_BYTES = 2**20


class _PromptRecord(msgspec.Struct, array_like=True):
    header: TrajectoryGroup
    last_draw: int
    trajectories: list[StoredTrajectory]


class _State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    layout_version: int
    num_prompts: int
    num_trajectories: int
    data_bytes: int
    data_crc32: int
    counters: BufferCounters
    urn: list[int]
    urn_num_left: int
    recency: list[tuple[bool, int, list[int]]]


def save_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Write a snapshot into `directory` (made if missing), flushed to disk."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / DATA_NAME).open("wb") as file:
        num_bytes, checksum = _write_prompts(buffer, file)
        _flush(file)
    state = _State(
        layout_version=LAYOUT_VERSION,
        num_prompts=len(buffer.prompts),
        num_trajectories=len(buffer),
        data_bytes=num_bytes,
        data_crc32=checksum,
        counters=buffer.counters,
        urn=buffer.urn.items,
        urn_num_left=buffer.urn.num_left,
        recency=buffer.recency.dump(),
    )
    with (directory / STATE_NAME).open("wb") as file:
        file.write(msgspec.json.encode(state))
        _flush(file)


def _write_prompts(buffer: ReplayBuffer, file: BinaryIO) -> tuple[int, int]:
    encoder = msgspec.msgpack.Encoder()
    num_bytes, checksum = 0, 0
    for prompt in buffer.prompts.values():
        record = encoder.encode(_PromptRecord(prompt.header, prompt.last_draw, prompt.trajectories))
        data = _LENGTH.pack(len(record)) + record
        file.write(data)
        num_bytes += len(data)
        checksum = zlib.crc32(data, checksum)
    return num_bytes, checksum


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def load_buffer(directory: Path, *, capacity: int, capacity_per_prompt: int) -> ReplayBuffer:
    """The buffer that `save_buffer` wrote; what exceeds capacities smaller than then is evicted, counted and logged.

    Raises:
        CheckpointError: A file is missing, damaged, or of another layout.
    """
    state = _read_state(directory / STATE_NAME)
    try:
        _check_data(directory / DATA_NAME, state)
        prompts = list(_read_prompts(directory / DATA_NAME))
    except OSError as error:
        raise CheckpointError(f"{directory / DATA_NAME}: unreadable ({error}); use an earlier checkpoint.") from error
    _check_consistent(prompts, state, directory)
    buffer = ReplayBuffer(capacity=capacity, capacity_per_prompt=capacity_per_prompt)
    num_evicted = buffer.restore(
        prompts,
        urn=Urn(state.urn, num_left=state.urn_num_left),
        recency=RecencyOrder.restore(state.recency),
        counters=state.counters,
    )
    if num_evicted:
        logger.warning("num_evicted=%d on resume: the replay capacities are smaller than before", num_evicted)
    return buffer


def _read_state(path: Path) -> _State:
    try:
        raw = msgspec.json.decode(path.read_bytes())
        # Looked at before the fields: another layout has other ones, and its number explains more than their names.
        layout = raw.get("layout_version") if isinstance(raw, dict) else None
        if layout != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path}: buffer snapshot of layout {layout}; this tbactl reads {LAYOUT_VERSION}. Resume with the "
                f"version that wrote it."
            )
        return msgspec.convert(raw, _State)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: unreadable ({error}); use an earlier checkpoint.") from error


def _check_data(path: Path, state: _State) -> None:
    num_bytes, checksum = 0, 0
    with path.open("rb") as file:
        while block := file.read(_READ_BLOCK_BYTES):
            num_bytes += len(block)
            checksum = zlib.crc32(block, checksum)
    if (num_bytes, checksum) != (state.data_bytes, state.data_crc32):
        raise CheckpointError(
            f"{path}: damaged or incomplete ({num_bytes:,} bytes of {state.data_bytes:,}); use an earlier checkpoint."
        )


def _read_prompts(path: Path) -> Iterator[StoredPrompt]:
    decoder = msgspec.msgpack.Decoder(_PromptRecord)
    with path.open("rb") as file:
        while prefix := file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(prefix)
            record = decoder.decode(file.read(length))
            prompt = StoredPrompt(record.header, last_draw=record.last_draw)
            for stored in record.trajectories:
                prompt.add(stored)
            yield prompt


def _check_consistent(prompts: list[StoredPrompt], state: _State, directory: Path) -> None:
    eligible = sorted(p.header.prompt_id for p in prompts if len(p.trajectories) >= MIN_GROUP_SIZE)
    by_recency = sorted(prompt_id for _, _, prompt_ids in state.recency for prompt_id in prompt_ids)
    counts = len(prompts), sum(len(prompt.trajectories) for prompt in prompts)
    if counts != (state.num_prompts, state.num_trajectories) or not eligible == sorted(state.urn) == by_recency:
        raise CheckpointError(
            f"{directory}: {STATE_NAME} and {DATA_NAME} do not belong together; use an earlier checkpoint."
        )


def rng_state_to_json(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a generator (`numpy.random.default_rng`, that is PCG64) as plain JSON values."""
    assert isinstance(rng.bit_generator, np.random.PCG64)
    return dict(rng.bit_generator.state)


def rng_state_from_json(state: Any) -> np.random.Generator:
    """The generator whose state `rng_state_to_json` wrote; it goes on with the same numbers.

    Raises:
        CheckpointError: Not such a state.
    """
    bit_generator = np.random.PCG64()
    try:
        bit_generator.state = state
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"state of a random generator expected, not {state!r:.80} ({error}).") from error
    return np.random.Generator(bit_generator)

"""The replay buffer on disk, exactly: after `load_buffer`, the same generator makes the same draws and evictions.

A directory of two files: `trajectories.msgpack`, records of about a thousand trajectories (length u32, then
msgpack; numbers as columns; all little-endian), and `buffer.json` with the counters, the orders of drawing, and length
and CRC32 of the other file. Never pickle. Whoever calls flushes the files to the disk, and makes the directory appear
atomically with the rest of the checkpoint.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tbactl.errors import CheckpointError
from tbactl.replay.buffer import MIN_GROUP_SIZE, ReplayBuffer
from tbactl.replay.columns import NUMBERS, Slots
from tbactl.replay.counters import BufferCounters
from tbactl.replay.holdings import Eviction
from tbactl.replay.near_duplicates import Likeness
from tbactl.replay.prompt_orders import RecencyOrder, Urn
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)

# Raise it with every change of the records below, of NUMBERS, of packing.py or of TrajectoryGroup.
LAYOUT_VERSION = 2
DATA_NAME = "trajectories.msgpack"
STATE_NAME = "buffer.json"

# What comes of well-formed records whose contents make no sense, where somebody has mended the checksum.
_MALFORMED = (struct.error, ValueError, TypeError, LookupError, OverflowError, RecursionError)
_LENGTH = struct.Struct("<I")
_READ_BLOCK_BYTES = 2**20
_RECORD_TRAJECTORIES = 1024


class _Part(msgspec.Struct, array_like=True):
    """Some or all trajectories of a prompt, oldest first; the parts of a prompt follow one another."""

    header: TrajectoryGroup
    last_draw: int
    num_trajectories: int
    fresh: list[int]
    """Ranks, among all trajectories of the prompt, of the fresh ones in their order; with the first part only."""
    block_sizes: list[int]
    """How `StoredPrompt.ages` is divided; with the first part only."""


class _Record(msgspec.Struct, array_like=True):
    parts: list[_Part]
    numbers: dict[str, bytes]
    data: list[bytes]


class _State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    layout_version: int
    num_prompts: int
    num_trajectories: int
    data_bytes: int
    data_crc32: int
    counters: BufferCounters
    urn: list[int]
    urn_num_left: int
    recency: list[tuple[int | bool, int, list[int]]]
    """As `RecencyOrder.dump` says; a rank was true or false once."""


def save_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Write a snapshot into `directory` (made if missing)."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / DATA_NAME).open("wb") as file:
        num_bytes, checksum = _write_records(buffer, file)
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
    (directory / STATE_NAME).write_bytes(msgspec.json.encode(state))


def _write_records(buffer: ReplayBuffer, file: BinaryIO) -> tuple[int, int]:
    encoder = msgspec.msgpack.Encoder()
    num_bytes, checksum = 0, 0
    for parts, slots in _batched(_parts(buffer)):
        columns = buffer.columns
        numbers = {name: columns.take(name, slots).tobytes() for name in NUMBERS}
        record = encoder.encode(_Record(parts, numbers, [columns.data[slot] for slot in slots.tolist()]))
        for data in (_LENGTH.pack(len(record)), record):
            file.write(data)
            num_bytes += len(data)
            checksum = zlib.crc32(data, checksum)
    return num_bytes, checksum


def _parts(buffer: ReplayBuffer) -> Iterator[tuple[_Part, Slots]]:
    for prompt in buffer.prompts.values():
        slots = prompt.ages.to_array()
        for start in range(0, len(slots), _RECORD_TRAJECTORIES):
            some = slots[start : start + _RECORD_TRAJECTORIES]
            part = _Part(prompt.header, prompt.last_draw, len(some), [], [])
            if start == 0:
                part.fresh = _ranks(prompt, slots)
                part.block_sizes = [len(block) for block in prompt.ages.blocks]
            yield part, some


def _ranks(prompt: StoredPrompt, slots: Slots) -> list[int]:
    """Where the fresh ones of a prompt stand in its order of age."""
    fresh = np.frombuffer(prompt.fresh, dtype=np.int32)
    order = np.argsort(slots)
    return order[np.searchsorted(slots, fresh, sorter=order)].tolist()


def _batched(parts: Iterator[tuple[_Part, Slots]]) -> Iterator[tuple[list[_Part], Slots]]:
    batch: list[tuple[_Part, Slots]] = []
    num_trajectories = 0
    for part, slots in parts:
        batch.append((part, slots))
        num_trajectories += len(slots)
        if num_trajectories >= _RECORD_TRAJECTORIES:
            yield [part for part, _ in batch], np.concatenate([slots for _, slots in batch])
            batch, num_trajectories = [], 0
    if batch:
        yield [part for part, _ in batch], np.concatenate([slots for _, slots in batch])


def load_buffer(
    directory: Path,
    *,
    capacity: int,
    capacity_per_prompt: int,
    eviction: Eviction = "oldest",
    likeness: Likeness | None = None,
    equal_rewards_last: bool = False,
) -> ReplayBuffer:
    """The buffer that `save_buffer` wrote; what exceeds capacities smaller than then is evicted, counted and logged.

    Raises:
        CheckpointError: A file is missing, damaged, or of another layout.
    """
    state = _read_state(directory / STATE_NAME)
    buffer = ReplayBuffer(
        capacity=capacity,
        capacity_per_prompt=capacity_per_prompt,
        eviction=eviction,
        likeness=likeness,
        equal_rewards_last=equal_rewards_last,
    )
    try:
        _check_data(directory / DATA_NAME, state)
        _read_prompts(directory / DATA_NAME, buffer)
    except (OSError, msgspec.MsgspecError, *_MALFORMED) as error:
        raise CheckpointError(f"{directory / DATA_NAME}: unreadable ({error}); use an earlier checkpoint.") from error
    _check_consistent(buffer, state, directory)
    num_evicted = buffer.restore(
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


def _read_prompts(path: Path, buffer: ReplayBuffer) -> None:
    decoder = msgspec.msgpack.Decoder(_Record)
    with path.open("rb") as file:
        part, start, stop = None, 0, 0
        while prefix := file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(prefix)
            record = decoder.decode(file.read(length))
            buffer.columns.extend(record.numbers, record.data)
            for following in record.parts:
                if part is None or part.header.prompt_id != following.header.prompt_id:
                    _add_prompt(buffer, part, range(start, stop))
                    part, start = following, stop
                stop += following.num_trajectories
        _add_prompt(buffer, part, range(start, stop))


def _add_prompt(buffer: ReplayBuffer, part: _Part | None, slots: range) -> None:
    if part is not None:
        prompt = StoredPrompt(part.header, buffer.columns, keeps_worths=buffer.holdings.keeps_worths)
        prompt.restore(slots, block_sizes=part.block_sizes, fresh=part.fresh, last_draw=part.last_draw)
        buffer.prompts[prompt.prompt_id] = prompt


def _check_consistent(buffer: ReplayBuffer, state: _State, directory: Path) -> None:
    eligible = sorted(prompt_id for prompt_id, prompt in buffer.prompts.items() if len(prompt) >= MIN_GROUP_SIZE)
    by_recency = sorted(prompt_id for _, _, prompt_ids in state.recency for prompt_id in prompt_ids)
    counts = len(buffer.prompts), len(buffer.columns)
    # A negative insert number is that of a slot without a trajectory.
    is_whole = min(buffer.columns.insert_number, default=0) >= 0
    if (
        not is_whole
        or counts != (state.num_prompts, state.num_trajectories)
        or not eligible == sorted(state.urn) == by_recency
    ):
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

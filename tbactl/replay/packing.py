"""A trajectory as bytes, because a million tuples of floats do not fit into memory: a head, tokens, log-probs, text.

100 tokens take 0.8 kB here (and the text), about 7 kB as tuples. Token ids are int32. Log-probs are float32 where that
is what they are, as engines make them, else float64: what is unpacked equals what was packed, bit by bit. All of it is
in one place, since what a draw from a large buffer waits for is memory.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tbactl.types import Completion, FinishReason, Trajectory

# Packed data and columns go to disk as they are in memory.
assert sys.byteorder == "little"

_HEAD = struct.Struct("<qdiiiB")
_NUM_TOKENS = struct.Struct("<i")
_NUM_TOKENS_OFFSET = 24
_FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")
# Bit of the form that says float64; the lower two number the finish reason.
_WIDE = 4


def _setter(owner: type, field: str) -> Callable[[object, object], None]:
    """What stores a field of a class with slots."""
    return owner.__dict__[field].__set__


_SET_TOKEN_IDS = _setter(Completion, "token_ids")
_SET_LOGPROBS = _setter(Completion, "logprobs")
_SET_TEXT = _setter(Completion, "text")
_SET_FINISH_REASON = _setter(Completion, "finish_reason")
_SET_FIRST_VERSION = _setter(Completion, "first_version")
_SET_LAST_VERSION = _setter(Completion, "last_version")
_SET_UID = _setter(Trajectory, "uid")
_SET_COMPLETION = _setter(Trajectory, "completion")
_SET_REWARD = _setter(Trajectory, "reward")


class Head(NamedTuple):
    """The numbers of a packed trajectory, in their order."""

    uid: int
    reward: float
    first_version: int
    last_version: int
    num_tokens: int
    form: int


def pack_token_ids(token_ids: tuple[int, ...]) -> bytes:
    """Token ids as int32."""
    return _layout(len(token_ids), "i").pack(*token_ids)


def unpack_token_ids(data: bytes) -> tuple[int, ...]:
    """The reverse of `pack_token_ids`."""
    return _layout(len(data) // 4, "i").unpack(data)


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """Pack what arrived over the wire; as many log-probs as token ids, which the wire checks."""
    completion = trajectory.completion
    logprobs, num_tokens = completion.logprobs, len(completion.token_ids)
    assert len(logprobs) == num_tokens
    is_wide = array("f", logprobs).tolist() != list(logprobs)
    head = _HEAD.pack(
        trajectory.uid,
        trajectory.reward,
        completion.first_version,
        completion.last_version,
        num_tokens,
        _FINISH_REASONS.index(completion.finish_reason) + (_WIDE if is_wide else 0),
    )
    numbers = _layout(num_tokens, "d" if is_wide else "f").pack(*logprobs)
    return b"".join((head, pack_token_ids(completion.token_ids), numbers, completion.text.encode()))


def unpack_trajectory(data: bytes) -> Trajectory:
    """The reverse of `pack_trajectory`."""
    return unpack_trajectories([data])[0]


def unpack_trajectories(packed: Iterable[bytes]) -> tuple[Trajectory, ...]:
    """The reverse of `pack_trajectory`, for all of a draw.

    Fields are set one by one past the constructors of the two frozen classes, which would take a quarter of the time.
    """
    trajectories = []
    for data in packed:
        uid, reward, first_version, last_version, num_tokens, form = _HEAD.unpack_from(data)
        logprobs_start = _HEAD.size + 4 * num_tokens
        logprobs_layout = _layout(num_tokens, "d" if form & _WIDE else "f")
        completion = object.__new__(Completion)
        _SET_TOKEN_IDS(completion, _layout(num_tokens, "i").unpack_from(data, _HEAD.size))
        _SET_LOGPROBS(completion, logprobs_layout.unpack_from(data, logprobs_start))
        _SET_TEXT(completion, str(data[logprobs_start + logprobs_layout.size :], "utf-8"))
        _SET_FINISH_REASON(completion, _FINISH_REASONS[form & ~_WIDE])
        _SET_FIRST_VERSION(completion, first_version)
        _SET_LAST_VERSION(completion, last_version)
        trajectory = object.__new__(Trajectory)
        _SET_UID(trajectory, uid)
        _SET_COMPLETION(trajectory, completion)
        _SET_REWARD(trajectory, reward)
        trajectories.append(trajectory)
    return tuple(trajectories)


def head_of(data: bytes) -> Head:
    """The numbers of a packed trajectory."""
    return Head._make(_HEAD.unpack_from(data))


def token_bytes_of(data: bytes) -> bytes:
    """The token ids of a packed trajectory, still packed: its identity under its prompt."""
    (num_tokens,) = _NUM_TOKENS.unpack_from(data, _NUM_TOKENS_OFFSET)
    return data[_HEAD.size : _HEAD.size + 4 * num_tokens]


def text_of(data: bytes) -> str:
    """The text of a packed trajectory."""
    head = head_of(data)
    return data[_HEAD.size + head.num_tokens * (12 if head.form & _WIDE else 8) :].decode()


@functools.cache
def _layout(num_items: int, kind: str) -> struct.Struct:
    # Native, as formats that name a byte order are slower.
    return struct.Struct(f"{num_items}{kind}")

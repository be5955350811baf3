"""Trajectory groups and evaluation results as bytes: msgpack behind a tag, a layout version and a kind. Never pickle.

    bytes 0..3  b"TBAC"      byte 4  layout version      byte 5  kind (1 group, 2 evaluation)      bytes 6..  msgpack

Both ends check what msgpack's types do not say: as many log-probs as tokens, finite numbers, ordered versions. So a
broken engine or reward stops at the searcher that has it, and nothing broken enters the replay buffer.

Before this file on the way of a trajectory: the searcher's loop. After it: `ring.py`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tbactl.errors import TbactlError
from tbactl.types import Completion, EvaluationResult, Trajectory, TrajectoryGroup

# Raise it with every change of the fields of the types below (tests/unit/test_codec.py pins them).
LAYOUT_VERSION = 2

_TAG = b"TBAC"
_PREFIX_BYTES = len(_TAG) + 2
_GROUP_KIND = 1
_EVALUATION_KIND = 2

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    _GROUP_KIND: msgspec.msgpack.Decoder(TrajectoryGroup),
    _EVALUATION_KIND: msgspec.msgpack.Decoder(EvaluationResult),
}


class CodecError(TbactlError, ValueError):
    """Bytes that are no record of this layout, or a record whose fields contradict each other."""


def encode(record: TrajectoryGroup | EvaluationResult) -> bytes:
    """The bytes of a record, for `decode`.

    Raises:
        CodecError: A field is inconsistent, not finite, or of a type that cannot travel.
    """
    kind = _GROUP_KIND if isinstance(record, TrajectoryGroup) else _EVALUATION_KIND
    _check(record)
    try:
        return _TAG + bytes((LAYOUT_VERSION, kind)) + _encoder.encode(record)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise CodecError(f"{type(record).__name__} cannot be encoded ({error}); use int, float and str.") from error


def decode(data: bytes) -> TrajectoryGroup | EvaluationResult:
    """The record that `encode` made into `data`, all fields validated.

    Raises:
        CodecError: No record, of another layout version or kind, truncated, of wrong types, or inconsistent.
    """
    if len(data) < _PREFIX_BYTES or data[: len(_TAG)] != _TAG:
        raise CodecError(f"{len(data)} bytes starting with {data[:4]!r} are no record of tbactl.")
    version, kind = data[len(_TAG)], data[len(_TAG) + 1]
    if version != LAYOUT_VERSION:
        raise CodecError(
            f"record of layout version {version}; this process knows version {LAYOUT_VERSION}: searcher and "
            f"trainer must run the same tbactl."
        )
    decoder = _decoders.get(kind)
    if decoder is None:
        raise CodecError(f"unknown record kind {kind}; known: {', '.join(map(str, _decoders))}.")
    try:
        record = decoder.decode(memoryview(data)[_PREFIX_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"damaged record of {len(data)} bytes: {error}") from error
    _check(record)
    return record


def _check(record: TrajectoryGroup | EvaluationResult) -> None:
    if isinstance(record, TrajectoryGroup):
        _check_group(record)
    else:
        _check_evaluation(record)


def _check_group(group: TrajectoryGroup) -> None:
    where = f"group {group.sequence_number} of searcher {group.searcher} (prompt {group.prompt_id})"
    for name in ("searcher", "sequence_number", "stream_position", "num_failed"):
        _require(getattr(group, name) >= 0, where, name, getattr(group, name), "must be >= 0")
    _require(min(group.prompt_token_ids, default=0) >= 0, where, "prompt_token_ids", "a negative id", "must be >= 0")
    for trajectory in group.trajectories:
        _check_trajectory(trajectory, where=f"{where}, trajectory {trajectory.uid}")


def _check_trajectory(trajectory: Trajectory, *, where: str) -> None:
    completion: Completion = trajectory.completion
    num_tokens, num_logprobs = len(completion.token_ids), len(completion.logprobs)
    _require(num_logprobs == num_tokens, where, "logprobs", num_logprobs, f"there are {num_tokens} token ids")
    _require(all(map(math.isfinite, completion.logprobs)), where, "logprobs", "inf or nan", "must be finite")
    _require(math.isfinite(trajectory.reward), where, "reward", trajectory.reward, "must be finite")
    _require(min(completion.token_ids, default=0) >= 0, where, "token_ids", "a negative id", "must be >= 0")
    _require(
        0 <= completion.first_version <= completion.last_version,
        where,
        "first_version, last_version",
        (completion.first_version, completion.last_version),
        "must be 0 <= first <= last",
    )


def _check_evaluation(result: EvaluationResult) -> None:
    where = f"evaluation of {result.task}"
    for name in ("policy_version", "num_prompts", "seconds"):
        value = getattr(result, name)
        _require(math.isfinite(value) and value >= 0, where, name, value, "must be finite and >= 0")
    for name, value in result.metrics.items():
        _require(math.isfinite(value), where, f"metrics[{name!r}]", value, "must be finite")
    for name, bounds in result.intervals.items():
        _require(all(map(math.isfinite, bounds)), where, f"intervals[{name!r}]", bounds, "must be finite")


def _require(is_right: bool, where: str, name: str, value: object, rule: str) -> None:
    if not is_right:
        raise CodecError(f"{where}: {name} is {value}; {rule}.")

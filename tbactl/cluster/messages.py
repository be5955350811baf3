"""What bridge and outpost say to each other: msgpack of these types, checked on arrival. Never pickle.

Times are nanoseconds of the sender's CLOCK_MONOTONIC, with the sender's `now_ns` beside them: clocks of two machines
have nothing in common, differences do.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tbactl.errors import ChildFailedError

Words = dict[str, int | float]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the run looks like, and what the bridge wants."""

    now_ns: int
    supervisor: Words
    trainer: Words
    takes_records: bool = False
    """Records may be sent: those sent before are in the run's ring."""
    wants_stacks: bool = False
    """The searcher is to write the stacks of its threads into its log."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What an outpost is to start."""

    tbactl_version: str
    process: bytes
    """`ProcessConfig` of the searcher, JSON; its directories are those of the bridge's machine."""
    words: Words
    """Of the searcher's slot: its attempt, and what it has done in earlier lives."""
    files: dict[str, bytes]
    """Small files of the run's shared memory that a restarted searcher reads."""
    policy: dict[str, str]
    """Files of the policy's directory and their fingerprints; empty for a hub name."""
    policy_bytes: int
    """Size of one version of the published weights; 0: not known."""
    request: Request
    """The run as it is at the start."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """The node can start the searcher, once it has the policy."""

    node: str
    has_policy: bool


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What has happened on the node since the last report."""

    now_ns: int
    words: Words
    """Of the searcher's slot, read before the records."""
    synced: Words | None
    """Those words that belong together; None: they were just being written."""
    records: list[bytes]
    log: bytes
    evaluations: bytes
    """Whole lines of evaluations.jsonl."""
    files: dict[str, bytes]
    """Small files that have changed."""
    exit_code: int | None
    """Of the searcher's process, as `subprocess` gives it; it had ended before all else here was read."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What was asked for is done."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """What was asked for has failed; `exit_code` says of which kind."""

    exit_code: int
    message: str


Answer = Prepared | Report | Done | Failure
Message = TypeVar("Message", bound=msgspec.Struct)


def encoded(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decoded(data: bytes, kind: type[Message]) -> Message:
    """The message in `data`.

    Raises:
        ChildFailedError: it is none of this kind.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ChildFailedError(f"{len(data)} bytes are no {kind.__name__}: {error}") from error

"""The near side: stands for a searcher that runs elsewhere, before the supervisor and the trainer.

A record is acknowledged, by the word `stream_position` from which a restarted searcher goes on, when it is in the run's
ring, not before: what is lost with a node, on it or on the way, is generated again. A full ring is back-pressure: no
record is asked for while the last ones wait, so the ring on the node fills, and the searcher starts no new prompt.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from tbactl.clock import Clock
from tbactl.cluster.messages import Report, Request, Words
from tbactl.cluster.mirror import DELIVERED, NOT_COPIED, moved
from tbactl.config.layout import ProcessConfig
from tbactl.errors import ChildFailedError
from tbactl.ipc.codec import CodecError, decode
from tbactl.ipc.control_page import SYNC_EDITS, ControlPage, ProcessState, RunState
from tbactl.ipc.ring import RingWriter
from tbactl.types import TrajectoryGroup
from tbactl.weight_sync.published import PublishedWeights, published_versions, read_description

logger = logging.getLogger(__name__)

# Between two exchanges that brought nothing.
REST_S = 0.02


class Peer(Protocol):
    """An outpost, as seen from here. Every method returns within a bound, or raises `TbactlError`."""

    node: str

    def exchange(self, request: Request) -> Report:
        """`Outpost.exchange`."""
        ...

    def send_weights(self, published: PublishedWeights) -> bool:
        """Begin to send a version, or go on; whether it has arrived, or is not to be had any more. Never waits."""
        ...


class Bridge:
    """Carries everything to and fro until the searcher's process has ended.

    Args:
        config: of the searcher.
        peer: where it runs.
        page: of the run.
        ring: of the searcher, in the run's shared memory.
        clock: for waits.
    """

    def __init__(self, config: ProcessConfig, peer: Peer, *, page: ControlPage, ring: RingWriter, clock: Clock) -> None:
        self._config = config
        self._peer = peer
        self._page = page
        self._slot = page.searcher(config.index)
        self._ring = ring
        self._clock = clock
        self._waiting: deque[tuple[bytes, int]] = deque()  # records, and where the prompt stream goes on after them
        self._delivered: Words = {}  # of the last report with records; true when none of these waits
        self._synced: Words = {}
        self._sent_version = -1
        self.wants_stacks = False

    def run(self) -> int:
        """Until the searcher has ended; returns its exit code.

        Raises:
            TbactlError: the node is lost, or sends what is no record.
        """
        while True:
            request = self._request()
            report = self._peer.exchange(request)
            self._apply(report)
            if request.takes_records:
                self._delivered = {name: report.words[name] for name in DELIVERED}
            has_written = self._write_waiting()
            self._send_weights()
            has_all = request.takes_records and not self._waiting
            if report.exit_code is not None and (has_all or self._is_stopping):
                logger.info("the searcher has left num_unwritten_groups=%d", len(self._waiting))
                return self._exit_code(report.exit_code)
            if not has_written:
                self._clock.sleep(REST_S)

    @property
    def _is_stopping(self) -> bool:
        return self._page.supervisor.get("run_state") == RunState.STOPPING

    def _request(self) -> Request:
        wants_stacks, self.wants_stacks = self.wants_stacks, False
        return run_state(self._page, takes_records=not self._waiting, wants_stacks=wants_stacks)

    def _apply(self, report: Report) -> None:
        sys.stderr.buffer.write(report.log)
        sys.stderr.flush()
        self._append_evaluations(report.evaluations)
        for name, data in report.files.items():
            _replace(self._config.shm.root / name, data)
        self._waiting += [(record, _position_after(record)) for record in report.records]
        self._slot.set(**moved(report.words, by_ns=time.monotonic_ns() - report.now_ns, without=NOT_COPIED))
        if report.words["state"] < ProcessState.STOPPED:
            self._slot.set(state=report.words["state"])
        if report.synced is not None and report.synced != self._synced:
            self._slot.set_together(SYNC_EDITS, **report.synced)
            self._synced = report.synced

    def _write_waiting(self) -> bool:
        """Write what there is room for, and acknowledge it; whether that was anything."""
        num_waiting = len(self._waiting)
        while self._waiting and self._ring.try_write(self._waiting[0][0]):
            _, position = self._waiting.popleft()
            self._slot.add(num_groups_written=1)
            self._raise(stream_position=position)
        if not self._waiting:
            self._raise(**self._delivered)
        return len(self._waiting) < num_waiting

    def _raise(self, **words: int | float) -> None:
        self._slot.set(**{name: max(value, self._slot.get(name)) for name, value in words.items()})

    def _send_weights(self) -> None:
        """Send on the newest weights, and before them those that are to be evaluated."""
        directory = self._config.shm.weights
        published = published_versions(directory)
        wanted = [v for v in published if v == published[-1] or v == self._page.trainer().get("evaluate_version")]
        for version in wanted:
            if version <= self._sent_version:
                continue
            description = read_description(directory, version)
            if description is not None and not self._peer.send_weights(description):
                return
            self._sent_version = version

    def _append_evaluations(self, lines: bytes) -> None:
        """With the time of this machine: only here `started_ns` means something."""
        for line in lines.splitlines():
            evaluation = msgspec.json.decode(line, type=dict)
            evaluation["wall_s"] = self._clock.wall_s()
            evaluation["elapsed_s"] = self._clock.monotonic_s() - self._page.supervisor.get("started_ns") / 1e9
            with self._config.layout.evaluations.open("ab") as file:
                file.write(msgspec.json.encode(evaluation) + b"\n")

    def _exit_code(self, exit_code: int) -> int:
        if exit_code >= 0:
            return exit_code
        logger.error("the searcher on %s was killed by %s", self._peer.node, signal.Signals(-exit_code).name)
        return ChildFailedError.exit_code


def run_state(page: ControlPage, *, takes_records: bool = False, wants_stacks: bool = False) -> Request:
    """The run as it is now, for an outpost to copy."""
    return Request(
        now_ns=time.monotonic_ns(),
        supervisor=page.supervisor.snapshot(),
        trainer=page.trainer().snapshot(),
        takes_records=takes_records,
        wants_stacks=wants_stacks,
    )


def _replace(path: Path, data: bytes) -> None:
    """As the searcher writes these files: the next one must not read a half."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)


def _position_after(record: bytes) -> int:
    group = decode(record)
    if not isinstance(group, TrajectoryGroup):
        raise CodecError(f"{len(record)} bytes from the searcher are {type(group).__name__}, not a group.")
    return group.stream_position

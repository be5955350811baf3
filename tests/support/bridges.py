"""A bridge with its run's shared memory, and peers that need no cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tbactl.clock import FakeClock
from tbactl.cluster.bridge import Bridge
from tbactl.cluster.messages import Report, Request, Words
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.ipc.codec import decode, encode
from tbactl.ipc.control_page import SYNCED, ControlPage, ProcessState
from tbactl.ipc.ring import RingReader, RingWriter
from tbactl.supervision.shared_memory import SharedMemory, shared_memory_layout
from tbactl.types import Completion, Trajectory, TrajectoryGroup
from tbactl.weight_sync.published import PublishedWeights

SEARCHERS = {
    "engine": "fake", "launcher": "ray", "num_completions": 2, "max_prompt_tokens": 32, "max_new_tokens": 8,
    "max_concurrent_groups": 4,
}  # fmt: skip


def record(number: int, *, num_bytes: int = 100) -> bytes:
    """The group of one prompt, after which the stream goes on at `number` + 1."""
    completion = Completion(token_ids=(1,), logprobs=(-1.0,), text="a" * num_bytes, finish_reason="stop")
    return encode(
        TrajectoryGroup(
            prompt_id=number,
            prompt_text="p",
            prompt_token_ids=(1,),
            trajectories=(Trajectory(uid=number, completion=completion, reward=0.0),),
            searcher=0,
            sequence_number=number,
            stream_position=number + 1,
        )
    )


def report(*, records: Sequence[bytes] = (), exit_code: int | None = None, synced: Words | None = None, **fields: Any):
    """What an outpost says; `fields` are words of the slot, or other fields of the report."""
    others = {name: fields.pop(name) for name in ("log", "evaluations", "files") if name in fields}
    words: Words = {
        "pid": 77, "state": ProcessState.RUNNING, "heartbeat_ns": time.monotonic_ns(), "stream_position": 0,
        "num_groups_written": 0, **fields,
    }  # fmt: skip
    return Report(
        now_ns=time.monotonic_ns(),
        words=words,
        synced=synced or dict.fromkeys(SYNCED, 0),
        records=list(records),
        exit_code=exit_code,
        **({"log": b"", "evaluations": b"", "files": {}} | others),
    )


class ScriptedPeer:
    """Says what it was given, in order; `on_exchange` sees each request before it is answered."""

    node = "node 1"

    def __init__(self, reports: Sequence[Report], *, on_exchange: Callable[[Request], None] = lambda request: None):
        self._reports = list(reports)
        self._on_exchange = on_exchange
        self.requests: list[Request] = []
        self.asked: list[int] = []
        self.arrives_after = 0

    def exchange(self, request: Request) -> Report:
        self.requests.append(request)
        self._on_exchange(request)
        return self._reports.pop(0)

    def send_weights(self, published: PublishedWeights) -> bool:
        self.asked.append(published.version)
        self.arrives_after -= 1
        return self.arrives_after < 0


class Desk:
    """The run's side: shared memory, a bridge over it, and the ring as the trainer reads it."""

    def __init__(self, root: Path, *, ring_capacity_bytes: int = 2**16, **changes: Any) -> None:
        values = {"name": "t", "task": {"kind": "fake"}, "policy": {"path": "fake"}, "searchers": SEARCHERS, **changes}
        values["searchers"] = values["searchers"] | {"ring_capacity_bytes": ring_capacity_bytes}
        run = RunConfig.model_validate(values)
        directory = root / "run"
        directory.mkdir()
        (root / "shm").mkdir()
        shm = shared_memory_layout(directory, root=root / "shm")
        self.memory = SharedMemory(shm, config=run, run_directory=directory)
        self.page: ControlPage = self.memory.page
        self.slot = self.page.searcher(0)
        self.config = ProcessConfig(
            role="searcher", index=0, run=run, run_directory=directory, shm_directory=shm.root,
            policy_directory=Path("fake"),
        )  # fmt: skip
        self.ring, self._reader = RingWriter.open(shm.ring(0)), RingReader.open(shm.ring(0))
        self.clock = FakeClock()

    def bridge(self, peer: Any, *, clock: Any = None) -> Bridge:
        return Bridge(self.config, peer, page=self.page, ring=self.ring, clock=clock or self.clock)

    def read(self, *, limit: int = 10_000) -> list[int]:
        """Prompts of the records that the trainer finds now."""
        found = []
        while len(found) < limit and (payload := self._reader.try_read()) is not None:
            group = decode(payload)
            assert isinstance(group, TrajectoryGroup)
            found.append(group.prompt_id)
        return found

"""A bridge and an outpost in one process, without Ray, around a real searcher process with the fake engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tbactl.clock import SystemClock
from tbactl.cluster.__main__ import the_order
from tbactl.cluster.messages import Order, Report, Request, decoded, encoded
from tbactl.cluster.outpost import Outpost
from tbactl.errors import ConfigError
from tbactl.ipc.control_page import ProcessState, RunState
from tbactl.protocols import ProbeBatch
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE
from tbactl.testing.fake_policy import FakePolicy
from tbactl.weight_sync.published import PublishedWeights, weights_path
from tbactl.weight_sync.publisher import publish
from tests.support.bridges import Desk

pytestmark = pytest.mark.slow


class DirectPeer:
    """An outpost in this process; messages go through their bytes all the same."""

    node = "here"

    def __init__(self, outpost: Outpost, *, weights: Path) -> None:
        self.outpost = outpost
        self._weights = weights

    def exchange(self, request: Request) -> Report:
        return decoded(encoded(self.outpost.exchange(decoded(encoded(request), Request))), Report)

    def send_weights(self, published: PublishedWeights) -> bool:
        self.outpost.take_weights(published, memoryview(weights_path(self._weights, published.version).read_bytes()))
        return True


class Far:
    """A searcher at an outpost, with its bridge at work in a thread."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.desk = Desk(root, **changes)
        # Nobody beats here: it is heard of for as long as a test may take.
        now_ns = time.monotonic_ns()
        self.desk.page.supervisor.set(heartbeat_ns=now_ns + 10**12, started_ns=now_ns)
        self.desk.slot.set(attempt=1)
        self.node_shm = root / "node"
        self.node_shm.mkdir()
        self.order = the_order(self.desk.config, page=self.desk.page)
        self.outpost = Outpost(decoded(encoded(self.order), Order), shm_root=self.node_shm)
        self._threads = ThreadPoolExecutor(1)

    def start(self) -> Future[int]:
        self.outpost.launch()
        peer = DirectPeer(self.outpost, weights=self.desk.config.shm.weights)
        self.bridge = self.desk.bridge(peer, clock=SystemClock())
        ended = self._threads.submit(self.bridge.run)
        self.wait_for(lambda: self.desk.slot.get("state") == ProcessState.RUNNING)
        return ended

    def announce(self, state: RunState) -> None:
        self.desk.page.supervisor.set(run_state=state)

    @property
    def processes(self) -> list[int]:
        return [pid for path in self.node_shm.iterdir() for pid in processes_with(RUN_VARIABLE, str(path))]

    def wait_for(self, condition: Callable[[], Any], *, timeout_s: float = 120.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"nothing after {timeout_s} s"
            time.sleep(0.02)
        return value

    def close(self) -> None:
        self.outpost.close()
        self._threads.shutdown()


def is_still(far: Far) -> bool:
    """Whether nothing moves any more. Between two groups, or two words of one report, it only looks so for a moment."""
    words = ("num_completions", "num_groups_written", "stream_position")
    before = [far.desk.slot.get(word) for word in words]
    time.sleep(1.0)
    return [far.desk.slot.get(word) for word in words] == before


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    far = Far(tmp_path, ring_capacity_bytes=2**14)
    yield far
    far.close()


def test_searcher_far_away_waits_for_a_full_ring_loses_nothing_and_takes_weights(far: Far):
    ended = far.start()
    far.announce(RunState.RUNNING)
    slot = far.desk.slot
    # Nobody reads: both rings fill, the searcher stops, and what is acknowledged is what the run's ring took.
    far.wait_for(lambda: slot.get("num_active_requests") == 0 and slot.get_float("f_ring_fill") > 0.5 and is_still(far))
    assert slot.get("stream_position") == slot.get("num_groups_written") > 0
    prompts = far.desk.read()
    assert len(prompts) <= slot.get("num_completions") // 2

    weights = far.desk.config.shm.weights
    probe = ProbeBatch(sequences=(((1, 2, 3), 1),))
    policy = FakePolicy.initial(Path("none"))
    table = policy.log_probabilities()
    logprobs = [tuple(float(table[token]) for token in (2, 3))]
    published = publish(weights, version=2, write=policy.save, probe=probe, probe_logprobs=logprobs)
    far.desk.page.trainer().set(published_version=2)
    far.wait_for(lambda: prompts.extend(far.desk.read()) or slot.get("loaded_version") == 2)
    assert slot.get("fingerprint") == int(published.fingerprint[:16], 16) and slot.get("num_alarms") == 0

    far.announce(RunState.DRAINING)
    far.wait_for(lambda: prompts.extend(far.desk.read()) or slot.get("state") == ProcessState.DRAINING)
    far.announce(RunState.STOPPING)
    far.wait_for(lambda: prompts.extend(far.desk.read()) or ended.done())
    assert ended.result() == 0
    prompts += far.desk.read()
    assert len(prompts) == len(set(prompts)) == slot.get("num_groups_written")
    assert slot.get("stream_position") == len(prompts)
    far.outpost.close()
    assert list(far.node_shm.iterdir()) == []


def test_searcher_writes_its_stacks_when_asked_and_is_told_as_a_failed_child_when_killed(far: Far, capfdbinary):
    ended = far.start()
    far.bridge.wants_stacks = True
    log = bytearray()  # it comes in pieces
    far.wait_for(lambda: log.extend(capfdbinary.readouterr().err) or b"(most recent call first)" in log)
    (pid,) = far.processes
    os.kill(pid, signal.SIGKILL)
    assert ended.result(timeout=120) == 5


def test_task_that_cannot_be_built_ends_with_its_own_exit_code_and_message(tmp_path: Path, capfdbinary):
    far = Far(tmp_path, task={"kind": "fake", "options": {"no_such_option": 1}})
    far.outpost.launch()
    try:
        peer = DirectPeer(far.outpost, weights=far.desk.config.shm.weights)
        assert far.desk.bridge(peer, clock=SystemClock()).run() == 3
        assert b"no_such_option" in capfdbinary.readouterr().err
    finally:
        far.close()


def test_node_with_another_version_is_refused(far: Far):
    with pytest.raises(ConfigError, match=r"this node has tbactl .* install the same"):
        Outpost(msgspec.structs.replace(far.order, tbactl_version="0.0.0"), shm_root=far.node_shm)

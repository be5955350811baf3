"""Faults from inside a process: methods of the real parts, and of the fake ones, that fail once when they are due."""

from __future__ import annotations

import errno
import math
import mmap
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tbactl.chaos.clock_jump import jump_when_armed
from tbactl.chaos.faults import Fault, Kind
from tbactl.chaos.settings import RING_BYTES, CaseLayout
from tbactl.chaos.trigger import Hook, Trigger, before, wrap
from tbactl.ipc.ring import RingWriter
from tbactl.protocols import FinishedRequest
from tbactl.testing.fake_engine import FakeEngine
from tbactl.testing.fake_learner import FakeLearner
from tbactl.testing.fake_task import FakeTask
from tbactl.trainer.intake import Intake
from tbactl.types import Reward

FAIL_EVERY = 20
STUCK_STEP_S = 0.001


def install(fault: Fault, *, layout: CaseLayout) -> None:
    """Prepare this process, the fault's target, to fail when it is armed. Faults from outside need nothing."""
    if fault.kind == "clock-jump":
        jump_when_armed(layout)
    elif fault.kind == "raise":
        _raise(fault, Trigger(layout))
    elif fault.kind in BY_KIND:
        BY_KIND[fault.kind](Trigger(layout))


def _raise(fault: Fault, trigger: Trigger) -> None:
    methods: Mapping[tuple[str, str], tuple[type, str]] = {
        ("trainer", "loading"): (FakeLearner, "__init__"),
        ("trainer", "filling"): (Intake, "drain"),
        ("trainer", "running"): (FakeLearner, "update"),
        ("trainer", "syncing"): (FakeLearner, "write_weights"),
        ("trainer", "checkpointing"): (FakeLearner, "save"),
        ("trainer", "draining"): (FakeLearner, "save"),
        ("searcher", "loading"): (FakeEngine, "__init__"),
        ("searcher", "syncing"): (FakeEngine, "load_policy"),
    }
    owner, name = methods.get((fault.role, fault.phase), (FakeEngine, "step"))
    error = RuntimeError(f"injected fault: {fault.kind} at {fault.phase}")
    wrap(owner, name, before(_failing(trigger, error)))


def _failing(trigger: Trigger, error: Exception) -> Callable[[], None]:
    """Raises when it is due."""

    def fail() -> None:
        if trigger.pull():
            raise error

    return fail


def _rewards(change: Callable[[list[Reward]], list[Reward]]) -> Callable[[Trigger], None]:
    """The rewards of one group come out wrong."""

    def prepare(trigger: Trigger) -> None:
        def make(original: Hook) -> Hook:
            def score(*arguments: object) -> list[Reward]:
                rewards = original(*arguments)
                return change(rewards) if trigger.pull() else rewards

            return score

        wrap(FakeTask, "score", make)

    return prepare


def _never_return(rewards: list[Reward]) -> list[Reward]:
    while True:
        time.sleep(1.0)


def _write_too_much(trigger: Trigger) -> None:
    """A completion of more bytes than the ring has."""

    def make(original: Hook) -> Hook:
        def step(engine: FakeEngine) -> list[FinishedRequest]:
            finished = original(engine)
            if finished and finished[0].completion is not None and trigger.pull():
                long = replace(finished[0].completion, text="a" * 2 * RING_BYTES)
                finished[0] = replace(finished[0], completion=long)
            return finished

        return step

    wrap(FakeEngine, "step", make)


def _tear_record(trigger: Trigger) -> None:
    """The writer is killed when half of a record's payload is in the ring."""

    class TornMap(mmap.mmap):
        """A ring's mapping: the header of a record is stored through its buffer, the payload as a slice of it."""

        def __setitem__(self, place: slice, payload: bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            if trigger.pull():
                half = len(payload) // 2
                super().__setitem__(slice(place.start, place.start + half), payload[:half])
                os.kill(os.getpid(), signal.SIGKILL)
            super().__setitem__(place, payload)

    def make(original: Hook) -> Hook:
        def init(ring: RingWriter, path: Path) -> None:
            original(ring, path)
            ring._map = TornMap(ring._descriptor, len(ring._map))

        return init

    wrap(RingWriter, "__init__", make)


def _load_half(trigger: Trigger) -> None:
    """The weights file that the engine is given ends in the middle."""

    def make(original: Hook) -> Hook:
        def load_policy(engine: FakeEngine, weights: Path, *, version: int) -> str:
            if trigger.pull():
                half = weights.parent.parent / "half.safetensors"
                half.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
                weights = half
            return original(engine, weights, version=version)

        return load_policy

    wrap(FakeEngine, "load_policy", make)


def _keep_old_weights(trigger: Trigger) -> None:
    """The engine acknowledges new weights, and goes on with those it has."""

    def make(original: Hook) -> Hook:
        def load_policy(engine: FakeEngine, weights: Path, *, version: int) -> str:
            kept = engine._policy
            fingerprint = original(engine, weights, version=version)
            if trigger.pull():
                engine._policy = kept
            return fingerprint

        return load_policy

    wrap(FakeEngine, "load_policy", make)


def _fail_requests(trigger: Trigger) -> None:
    """From now on every twentieth request fails."""
    is_failing = False
    num_finished = 0

    def make(original: Hook) -> Hook:
        def step(engine: FakeEngine) -> list[FinishedRequest]:
            nonlocal is_failing, num_finished
            finished = original(engine)
            for i, request in enumerate(finished):
                is_failing = is_failing or trigger.pull()
                num_finished += is_failing
                if is_failing and num_finished % FAIL_EVERY == 1:
                    finished[i] = replace(request, completion=None, error="injected failure of this request")
            return finished

        return step

    wrap(FakeEngine, "step", make)


def _finish_nothing(trigger: Trigger) -> None:
    """From now on the engine turns, and no request gets on."""
    is_stuck = False

    def make(original: Hook) -> Hook:
        def step(engine: FakeEngine) -> list[FinishedRequest]:
            nonlocal is_stuck
            is_stuck = is_stuck or trigger.pull()
            if not is_stuck:
                return original(engine)
            time.sleep(STUCK_STEP_S)
            return []

        return step

    wrap(FakeEngine, "step", make)


def _no_space(method: str) -> Callable[[Trigger], None]:
    """Where no file system may be mounted: the call that would meet a full one fails as it would."""

    def prepare(trigger: Trigger) -> None:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrap(FakeLearner, method, before(_failing(trigger, error)))

    return prepare


BY_KIND: Mapping[Kind, Callable[[Trigger], None]] = {
    "nan-reward": _rewards(lambda rewards: [replace(rewards[0], value=math.nan), *rewards[1:]]),
    "infinite-reward": _rewards(lambda rewards: [replace(rewards[0], value=math.inf), *rewards[1:]]),
    "short-reward": _rewards(lambda rewards: rewards[:-1]),
    "stuck-reward": _rewards(_never_return),
    "oversize-record": _write_too_much,
    "torn-record": _tear_record,
    "failed-load": _load_half,
    "wrong-weights": _keep_old_weights,
    "failing-engine": _fail_requests,
    "stuck-engine": _finish_nothing,
    "full-shm": _no_space("write_weights"),
    "full-disk": _no_space("save"),
}

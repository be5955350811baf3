"""How children are judged, asked for their stacks and ended: fake children, under a fake clock."""

from __future__ import annotations

import itertools
import json
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from tbactl.clock import Clock, FakeClock
from tbactl.config.sections import RunConfig
from tbactl.errors import ChildFailedError
from tbactl.ipc.control_page import ControlPage, ProcessState, Slot
from tbactl.supervision import fleet as fleet_module
from tbactl.supervision.events import EventLog
from tbactl.supervision.fleet import STACK_DUMP_LIMIT_S, STACK_LOOKS, STACK_POLL_S, Fleet
from tbactl.supervision.process import ChildProcess, ProcessSpec
from tbactl.supervision.shutdown import TERMINATE_S, Shutdown
from tbactl.supervision.signals import StopSignals

START_S = 1000.0
GRACE_S = 12.0
# Beyond what the kernel gives away: no process has such a pid.
PIDS = itertools.count(2**22 + 1)


class FakeChild(ChildProcess):
    """No process at all. It does what the test says: how its log grows, when it ends."""

    def __init__(self, spec: ProcessSpec, *, clock: Clock) -> None:
        self.spec = spec
        self.pid = next(PIDS)
        self.started_s = clock.monotonic_s()
        self.exit_code: int | None = None
        self.signals: list[tuple[signal.Signals, float]] = []
        self.size_after: Callable[[float], int] = lambda asked_s: 0
        self.ends_s = math.inf
        self._clock = clock

    def poll(self) -> int | None:
        if self.exit_code is None and self._clock.monotonic_s() >= self.ends_s:
            self.exit_code = 1
        return self.exit_code

    def signal(self, number: signal.Signals) -> None:
        self.signals.append((number, self._clock.monotonic_s()))

    signal_group = signal

    def kill(self) -> None:
        if self.exit_code is None:
            self.signal(signal.SIGKILL)
            self.exit_code = -signal.SIGKILL

    def describe_exit(self) -> str:
        return f"exit code {self.exit_code}"

    def tail(self) -> list[str]:
        return []

    def log_size(self) -> int:
        """Of a log that had 100 bytes until the child was asked for its stacks; it grows each time."""
        asked = [at_s for number, at_s in self.signals if number is signal.SIGUSR1]
        return 100 + sum(self.size_after(self._clock.monotonic_s() - at_s) for at_s in asked)

    def when(self, number: signal.Signals) -> float:
        """When it was first sent a signal."""
        return min(at_s for sent, at_s in self.signals if sent is number)


class Scene:
    """A trainer and two searchers that run, under a clock and with words that the test moves."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = FakeClock(START_S)
        self.page = ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=2)
        self._events = tmp_path / "events.jsonl"
        self.log = EventLog(self._events, clock=self.clock)
        self.beats: list[float] = []
        config = {"name": "t", "task": {"kind": "fake"}, "policy": {"path": "p"}, "searchers": {"num_searchers": 2}}
        self.config = RunConfig.model_validate(config)
        self.fleet = Fleet(
            self.config,
            [
                self._spec(tmp_path, "trainer", 0),
                self._spec(tmp_path, "searcher", 0),
                self._spec(tmp_path, "searcher", 1),
            ],
            page=self.page,
            events=self.log,
            clock=self.clock,
            beat=lambda: self.beats.append(self.clock.monotonic_s()),
        )
        self.fleet.start_all()
        self.children = cast(list[FakeChild], self.fleet.alive())
        self.trainer, *self.searchers = self.children
        for child in self.children:
            self.slot(child).set(pid=child.pid, state=ProcessState.RUNNING)
            self.speak(child)

    @staticmethod
    def _spec(tmp_path: Path, role: Literal["trainer", "searcher"], index: int) -> ProcessSpec:
        return ProcessSpec(role=role, index=index, argv=(), environment={}, log_path=tmp_path / f"{role}-{index}.log")

    def slot(self, child: FakeChild) -> Slot:
        return self.page.trainer() if child.spec.role == "trainer" else self.page.searcher(child.spec.index)

    def speak(self, *children: FakeChild) -> None:
        """A heartbeat, and progress."""
        now_ns = int(self.clock.monotonic_s() * 1e9)
        for child in children:
            self.slot(child).set(heartbeat_ns=now_ns, progress_ns=now_ns)

    def dump_s(self, *children: FakeChild, **options: Any) -> float:
        """How long a dump of the stacks takes."""
        before_s = self.clock.monotonic_s()
        self.fleet.dump_stacks(children, **options)
        return self.clock.monotonic_s() - before_s

    def events(self, *kinds: str) -> list[str]:
        """Those of some kinds, as `child_died searcher-0`."""
        events = map(json.loads, self._events.read_bytes().splitlines())
        return [f"{event['kind']} {event['process']}" for event in events if event["kind"] in kinds]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(fleet_module, "ChildProcess", FakeChild)
    scene = Scene(tmp_path)
    with scene.log:
        yield scene


def never(asked_s: float) -> int:
    return 0


def at_once(asked_s: float) -> int:
    return 50


def late(asked_s: float) -> int:
    return 50 if asked_s >= 2.0 else 0


def always(asked_s: float) -> int:
    return 1 + int(1000 * asked_s)


def test_stacks_are_waited_for_until_the_log_has_grown_and_grows_no_longer(scene: Scene):
    first, second = scene.searchers
    first.size_after, second.size_after = at_once, late
    assert scene.dump_s(first) == 2 * STACK_POLL_S
    assert scene.dump_s(first, second) == 2.0 + STACK_POLL_S


def test_log_that_never_grows_is_waited_for_up_to_the_limit(scene: Scene):
    assert scene.dump_s(*scene.children) == STACK_DUMP_LIMIT_S
    assert scene.dump_s(*scene.children, limit_s=0.6) == pytest.approx(0.6)
    assert scene.dump_s(*scene.children, limit_s=-1.0) == 0.0
    assert all(len(child.signals) == 3 for child in scene.children), "asked all the same"


def test_log_that_always_grows_is_waited_for_a_few_looks(scene: Scene):
    scene.trainer.size_after = always
    assert scene.dump_s(scene.trainer) == STACK_LOOKS * STACK_POLL_S < STACK_DUMP_LIMIT_S


def test_children_that_write_in_turn_need_not_be_quiet_together(scene: Scene):
    """Each one's log stands still for one look only, and never while another's does."""
    first, second = scene.searchers
    looks = 1 / STACK_POLL_S
    first.size_after = lambda asked_s: round(asked_s * looks) // 2
    second.size_after = lambda asked_s: (round(asked_s * looks) + 1) // 2
    assert scene.dump_s(first, second) <= STACK_LOOKS * STACK_POLL_S


def test_child_that_ends_is_waited_for_no_longer(scene: Scene):
    scene.trainer.ends_s = START_S + 1.0
    assert scene.dump_s(scene.trainer) == 1.0


def test_nobody_is_waited_for_who_does_not_listen_yet(scene: Scene):
    scene.slot(scene.trainer).set(pid=0)
    assert scene.dump_s(scene.trainer) == 0.0
    assert scene.trainer.signals == []


def test_wait_for_stacks_stops_when_it_should(scene: Scene):
    assert scene.dump_s(scene.trainer, should_stop=lambda: scene.clock.now_s >= START_S + 0.6) == 0.75
    assert scene.dump_s(scene.trainer, should_stop=lambda: True) == 0.0


def test_supervisor_beats_while_it_waits_for_stacks(scene: Scene):
    duration_s = scene.dump_s(scene.trainer)
    assert scene.beats == [START_S + look * STACK_POLL_S for look in range(int(duration_s / STACK_POLL_S))]


def test_all_stalled_write_their_stacks_at_once(scene: Scene):
    scene.clock.now_s += 21.0
    scene.speak(scene.trainer)
    asked_s = scene.clock.now_s
    scene.fleet.check()
    assert scene.clock.now_s == asked_s + STACK_DUMP_LIMIT_S
    assert [child.when(signal.SIGUSR1) for child in scene.searchers] == [asked_s, asked_s]
    assert [child.exit_code for child in scene.searchers] == [-signal.SIGKILL] * 2
    assert scene.trainer.signals == []
    assert scene.events("child_stalled", "child_died") == [
        "child_stalled searcher-0",
        "child_stalled searcher-1",
        "child_died searcher-0",
        "child_died searcher-1",
    ]


def test_stalled_child_that_ends_the_run_leaves_no_other_stalled_one_alive(scene: Scene):
    scene.clock.now_s += 21.0
    with pytest.raises(ChildFailedError, match=r"trainer-0 .* no heartbeat for 21\.0 s"):
        scene.fleet.check()
    assert scene.fleet.alive() == []
    assert [sign.heartbeat_s for sign in scene.fleet.signs()] == [21.0] * 3, "as they were found"


def test_child_is_judged_by_its_last_word_only_if_the_supervisor_may_judge(scene: Scene):
    scene.clock.now_s += 21.0
    scene.fleet.check(may_judge=False)
    assert scene.fleet.alive() == scene.children and scene.events("child_stalled") == []
    scene.speak(scene.trainer, scene.searchers[0])
    scene.fleet.check()
    assert scene.fleet.alive() == [scene.trainer, scene.searchers[0]]


def test_death_is_noted_also_while_the_supervisor_may_not_judge(scene: Scene):
    scene.searchers[1].exit_code = -signal.SIGKILL
    scene.clock.now_s += 21.0
    scene.fleet.check(may_judge=False)
    assert scene.events("child_died", "child_restarting") == ["child_died searcher-1", "child_restarting searcher-1"]
    scene.trainer.exit_code = 1
    with pytest.raises(ChildFailedError, match="trainer-0"):
        scene.fleet.check(may_judge=False)


def shut_down(scene: Scene, signals: StopSignals) -> float:
    """End a run whose trainer has nothing to save; how long it takes."""
    shutdown = Shutdown(
        scene.fleet,
        page=scene.page,
        signals=signals,
        events=scene.log,
        clock=scene.clock,
        tick=lambda: scene.speak(*scene.children),
        grace_s=GRACE_S,
    )
    shutdown.run(drain=False, has_run=True)
    return scene.clock.now_s - START_S


@pytest.mark.parametrize("size_after", [never, at_once, late, always])
def test_way_down_is_bounded_however_the_stacks_are_written(scene: Scene, size_after: Callable[[float], int]):
    for child in scene.children:
        child.size_after = size_after
    assert shut_down(scene, StopSignals(clock=scene.clock)) == pytest.approx(GRACE_S, abs=0.1)
    for child in scene.children:
        assert child.when(signal.SIGUSR1) == pytest.approx(START_S + GRACE_S - TERMINATE_S, abs=0.1)
        assert child.when(signal.SIGKILL) - child.when(signal.SIGTERM) >= TERMINATE_S / 2 - 0.1


def test_second_interrupt_ends_the_wait_for_stacks_on_the_way_down(scene: Scene):
    signals = StopSignals(clock=scene.clock)

    def hurry(asked_s: float) -> int:
        signals.hurry = True
        return 0

    scene.trainer.size_after = hurry
    assert shut_down(scene, signals) <= GRACE_S - TERMINATE_S + STACK_POLL_S + 0.1
    assert scene.trainer.exit_code == -signal.SIGKILL

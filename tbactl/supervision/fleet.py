"""The children of a run: started, judged, restarted. What ends the run is raised, everything else is an event."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tbactl.clock import Clock
from tbactl.config.sections import RunConfig
from tbactl.errors import CapacityError, CheckpointError, ChildFailedError, ConfigError, TaskError, TbactlError
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState, Slot
from tbactl.supervision.events import EventLog
from tbactl.supervision.identity import is_stopped
from tbactl.supervision.inquest import Sign
from tbactl.supervision.process import ChildProcess, ProcessSpec
from tbactl.supervision.restart import RestartPolicy
from tbactl.supervision.watchdog import complaint

# A child that reports the user's mistake by its exit code would report it again after a restart.
PERMANENT_FAILURES = {kind.exit_code: kind for kind in (ConfigError, TaskError, CapacityError, CheckpointError)}

# Of a searcher that is restarted: where it was in its prompt stream, and the work of all its lives.
KEPT_WORDS = ("stream_position", "num_completions", "num_failed", "tokens_generated", "num_groups_written")

# Less free space than this is none: then a log may lack its last lines.
NO_SPACE_BYTES = 2**16

# For faulthandler to write the stacks of a stalled process into its log before it is killed. On a busy machine it may
# get no core for a while: written are they when the log has grown and grows no longer. That of a child that chats never
# stands still: a few looks after it has begun to grow are enough.
STACK_DUMP_LIMIT_S = 5.0
STACK_POLL_S = 0.25
STACK_LOOKS = 4


def _never() -> bool:
    return False


class _Writing:
    """A child that is asked for its stacks, and its log as it grows."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self._size_before = self._size = child.log_size()
        self._num_looks = 0  # at a log that has grown

    def is_over(self) -> bool:
        """Look at it once more: whether it has written, or has ended."""
        last, self._size = self._size, self.child.log_size()
        self._num_looks += self._size > self._size_before
        has_written = self._num_looks >= (1 if self._size == last else STACK_LOOKS)
        return has_written or self.child.poll() is not None


@dataclass(slots=True)
class _Searcher:
    """What is remembered of one searcher beyond the life of its process."""

    attempt: int = 0
    restart_at_s: float | None = None
    behind_since_s: float | None = None
    loaded_version: int = field(default=-1)


class Fleet:
    """All children of a run. Only the thread that starts them uses it: they end with that thread.

    Args:
        config: all settings.
        specs: what to start.
        page: what the children say.
        events: what happens to them.
        clock: the time.
        beat: the supervisor's own sign of life, called again and again while something is waited for.
    """

    def __init__(
        self,
        config: RunConfig,
        specs: Iterable[ProcessSpec],
        *,
        page: ControlPage,
        events: EventLog,
        clock: Clock,
        beat: Callable[[], None],
    ) -> None:
        self._config = config
        self._specs = {spec.name: spec for spec in specs}
        self._page = page
        self._events = events
        self._clock = clock
        self._beat = beat
        self._policy = RestartPolicy(config.supervision)
        self._children: dict[str, ChildProcess] = {}
        self._stopped_since_s: dict[int, float] = {}  # by pid
        self._stalled: dict[str, Sign] = {}  # as they were before they were made to write their stacks
        self._searchers = {spec.name: _Searcher() for spec in self._specs.values() if spec.role == "searcher"}

    def start_all(self) -> None:
        """Start every process.

        Raises:
            ChildFailedError: the system refuses.
        """
        for spec in self._specs.values():
            self._start(spec)

    def alive(self) -> list[ChildProcess]:
        """Children that have not ended, trainers first."""
        return [child for child in self._children.values() if child.poll() is None]

    @property
    def all_ready(self) -> bool:
        """Whether every process has reported READY, or more."""
        return all(
            name in self._children and self._slot(spec).get("state") in (ProcessState.READY, ProcessState.RUNNING)
            for name, spec in self._specs.items()
        )

    @property
    def all_stopped(self) -> bool:
        """Whether every child that lives says that it is done."""
        return all(self._slot(child.spec).get("state") == ProcessState.STOPPED for child in self.alive())

    @property
    def has_all_trainers(self) -> bool:
        """Whether every trainer rank lives."""
        num_alive = sum(child.spec.role == "trainer" for child in self.alive())
        return num_alive == self._page.num_trainer_ranks

    @property
    def num_restarts(self) -> int:
        """Restarts of all searchers together."""
        return sum(self._policy.counts.values())

    @property
    def num_completions(self) -> int:
        """Completions generated by all searchers in all their lives."""
        return sum(self._slot(self._specs[name]).get("num_completions") for name in self._searchers)

    def check(self, *, may_judge: bool = True, should_stop: Callable[[], bool] = _never) -> None:
        """Look at every child once: note deaths, end the stalled, restart what is due.

        Args:
            may_judge: by how old a child's last word is. Deaths are noted all the same.
            should_stop: whether the stacks of the stalled are waited for no longer.

        Raises:
            TbactlError: a trainer died, or a searcher beyond its restarts; the class is that of its exit code.
        """
        stalled: list[tuple[ChildProcess, str]] = []
        for child in list(self._children.values()):
            if child.poll() is not None:
                self._handle_exit(child, why=child.describe_exit())
            elif may_judge and (reason := self._complaint(child)) is not None:
                stalled.append((child, reason))
        self._end_stalled(stalled, should_stop=should_stop)
        now = self._clock.monotonic_s()
        for name, searcher in self._searchers.items():
            if searcher.restart_at_s is not None and now >= searcher.restart_at_s:
                searcher.restart_at_s = None
                self._start(self._specs[name])

    def stalled(self) -> list[tuple[ChildProcess, str]]:
        """Children with which something is wrong, and what. Nothing is done about it."""
        judged = [(child, self._complaint(child)) for child in self.alive()]
        return [(child, reason) for child, reason in judged if reason is not None]

    def check_drained(self) -> None:
        """Look at the trainers once more, when they should have written their last checkpoint and left.

        Raises:
            TbactlError: one has failed instead; the class is that of its exit code.
        """
        for child in list(self._children.values()):
            if child.spec.role == "trainer" and child.poll() is not None:
                self._handle_exit(child, why=child.describe_exit())

    def dump_stacks(
        self,
        children: Iterable[ChildProcess],
        *,
        limit_s: float = STACK_DUMP_LIMIT_S,
        should_stop: Callable[[], bool] = _never,
    ) -> None:
        """Have children write the stacks of all their threads into their logs, and wait until they have.

        One that is stopped has to go on for it. One that does not listen yet is left alone: the signal would end it.

        Args:
            children: who is asked, all at the same time.
            limit_s: how long they are waited for, together. On a full disk no log grows: then it passes.
            should_stop: whether to wait no longer.
        """
        writing = [_Writing(child) for child in children if self._slot(child.spec).get("pid") == child.pid]
        for one in writing:
            one.child.signal(signal.SIGUSR1)
            if is_stopped(one.child.pid):
                one.child.signal(signal.SIGCONT)
        until_s = self._clock.monotonic_s() + limit_s
        while writing and not should_stop() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._beat()
            self._clock.sleep(min(STACK_POLL_S, left_s))
            writing = [one for one in writing if not one.is_over()]

    def signs(self) -> list[Sign]:
        """When each process was last heard of, trainers first. Of one that was ended: what was seen then."""
        alive = {child.spec.name for child in self.alive()}
        return [
            self._stalled[name] if name in self._stalled else self._sign(spec, is_alive=name in alive)
            for name, spec in self._specs.items()
        ]

    def _sign(self, spec: ProcessSpec, *, is_alive: bool) -> Sign:
        return Sign.of(spec.name, self._slot(spec), is_alive=is_alive, now_ns=self._now_ns())

    def _start(self, spec: ProcessSpec) -> None:
        slot = self._slot(spec)
        attempt = 1
        if spec.name in self._searchers:
            searcher = self._searchers[spec.name]
            searcher.attempt += 1
            searcher.behind_since_s = None
            attempt = searcher.attempt
            kept = {word: slot.get(word) for word in KEPT_WORDS}
            slot.reset()
            slot.set(attempt=attempt, **kept)
        else:
            slot.reset()
        try:
            child = ChildProcess(spec, clock=self._clock)
        except OSError as error:
            raise ChildFailedError(f"cannot start {spec.name}: {error}.") from error
        self._children[spec.name] = child
        self._stalled.pop(spec.name, None)
        self._events.record("child_started", process=spec.name, pid=child.pid, attempt=attempt)

    def _complaint(self, child: ChildProcess) -> str | None:
        slot = self._slot(child.spec)
        wrong = complaint(
            slot.snapshot(),
            now_ns=self._now_ns(),
            started_ns=int(child.started_s * 1e9),
            supervision=self._config.supervision,
        )
        if wrong is None and slot.get("state") < ProcessState.READY:
            wrong = self._stop_complaint(child)
        if wrong is None and child.spec.role == "searcher":
            wrong = self._sync_complaint(self._searchers[child.spec.name], slot)
        return wrong

    def _stop_complaint(self, child: ChildProcess) -> str | None:
        """Whether a child that loads has been stopped. Of its heartbeat nothing can be said: imports may hold it up."""
        now = self._clock.monotonic_s()
        if not is_stopped(child.pid):
            self._stopped_since_s.pop(child.pid, None)
            return None
        stopped_s = now - self._stopped_since_s.setdefault(child.pid, now)
        limit_s = self._config.supervision.heartbeat_timeout_s
        if stopped_s <= limit_s:
            return None
        return f"it was stopped while it loaded, {stopped_s:.1f} s ago (supervision.heartbeat_timeout_s = {limit_s:g})"

    def _sync_complaint(self, searcher: _Searcher, slot: Slot) -> str | None:
        """Whether a searcher has held old weights for too long. An evaluation in progress may finish first."""
        now = self._clock.monotonic_s()
        published, loaded = self._page.trainer().get("published_version"), slot.get("loaded_version")
        is_busy = slot.get("evaluating") or slot.get("state") != ProcessState.RUNNING
        if loaded >= published or is_busy or loaded != searcher.loaded_version or searcher.behind_since_s is None:
            searcher.loaded_version = loaded
            searcher.behind_since_s = None if loaded >= published or is_busy else now
            return None
        limit_s = self._config.supervision.acknowledge_timeout_s
        if now - searcher.behind_since_s <= limit_s:
            return None
        return (
            f"it has not loaded policy version {published} for {now - searcher.behind_since_s:.0f} s, "
            f"it holds {loaded} (supervision.acknowledge_timeout_s = {limit_s:g}); its stacks are in its log"
        )

    def _end_stalled(self, stalled: Sequence[tuple[ChildProcess, str]], *, should_stop: Callable[[], bool]) -> None:
        """End children that stall, each with a reason. All write their stacks at once: it is one wait for them all."""
        for child, reason in stalled:
            self._events.record("child_stalled", process=child.spec.name, pid=child.pid, reason=reason)
            self._stalled[child.spec.name] = self._sign(child.spec, is_alive=False)
        self.dump_stacks([child for child, _ in stalled], should_stop=should_stop)
        for child, _ in stalled:  # all of them, before one of them ends the run
            child.kill()
        for child, reason in stalled:
            self._handle_exit(child, why=f"ended by the supervisor: {reason}")

    def _handle_exit(self, child: ChildProcess, *, why: str) -> None:
        del self._children[child.spec.name]
        is_trainer = child.spec.role == "trainer"
        is_done = child.exit_code == 0 or self._slot(child.spec).get("state") == ProcessState.STOPPED
        may_leave = self._page.trainer().get("finished") or self._page.supervisor.get("run_state") >= RunState.DRAINING
        if is_trainer and is_done and (child.spec.index > 0 or may_leave):
            self._events.record("child_ended", process=child.spec.name, pid=child.pid)
            return
        self._events.record("child_died", process=child.spec.name, pid=child.pid, how=why)
        kind = PERMANENT_FAILURES.get(child.exit_code or 0)
        if is_trainer or kind is not None:
            raise _failure(child, why=why, kind=kind or ChildFailedError)
        delay_s = self._policy.next_delay_s(child.spec.index)
        if delay_s is None:
            limit = self._config.supervision.max_restarts
            raise _failure(child, why=f"{why}; restarted {limit} times before (supervision.max_restarts)")
        self._searchers[child.spec.name].restart_at_s = self._clock.monotonic_s() + delay_s
        self._events.record("child_restarting", process=child.spec.name, delay_s=delay_s)

    def _slot(self, spec: ProcessSpec) -> Slot:
        return self._page.trainer(spec.index) if spec.role == "trainer" else self._page.searcher(spec.index)

    def _now_ns(self) -> int:
        return int(self._clock.monotonic_s() * 1e9)


def _failure(child: ChildProcess, *, why: str, kind: type[TbactlError] = ChildFailedError) -> TbactlError:
    is_full = shutil.disk_usage(child.spec.log_path.parent).free < NO_SPACE_BYTES
    nothing = "(nothing: the disk is full)" if is_full else "(nothing)"
    tail = "".join(f"\n  | {line}" for line in child.tail() or [nothing])
    return kind(f"{child.spec.name} (pid {child.pid}) died: {why}. Its last lines, from {child.spec.log_path}:{tail}")

"""`tbactl run` in one function, and the loop that watches over it.

    run_to_end
        reclaim what dead runs left -> prepare the run directory -> shared memory -> Supervisor.run -> summary

    STARTING --all READY--> RUNNING --finished, evaluated------------> STOPPING --> children reaped, memory removed
        |                      |---stop wanted, or a child failed--> DRAINING ---^
        `--stop wanted, or a child failed------------------------------------^

| waits for                     | unblocked by                        | bounded by                                 |
|-------------------------------|-------------------------------------|--------------------------------------------|
| STARTING: every child READY   | the children                        | start_timeout_s, max_restarts              |
| RUNNING: trainer's `finished` | the trainer                         | progress_timeout_s, of the run 4 s more    |
| final evaluation              | searcher 0                          | evaluation_timeout_s                       |
| DRAINING, STOPPING            | children exit, or a second Ctrl-C   | stop_grace_s                               |
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tbactl.clock import Clock, SystemClock
from tbactl.config.hardware import Profile
from tbactl.config.layout import SHM_ROOT
from tbactl.config.run_record import Outcome
from tbactl.config.sections import RunConfig
from tbactl.dashboard.live import open_view
from tbactl.dashboard.outlet import Outlet, say
from tbactl.dashboard.state import page_snapshot
from tbactl.errors import CapacityError, ChildFailedError, TbactlError, is_out_of_space
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.supervision.atomic import point_symlink, write_text
from tbactl.supervision.events import EventLog, utc
from tbactl.supervision.fleet import Fleet
from tbactl.supervision.inquest import Inquest
from tbactl.supervision.progress import ProgressRecorder
from tbactl.supervision.reclaim import end_processes_of, reclaim
from tbactl.supervision.run_directory import ArgvBuilder, RunDirectory, child_argv, prepare
from tbactl.supervision.run_lock import sole_supervisor
from tbactl.supervision.shared_memory import SharedMemory
from tbactl.supervision.shutdown import Shutdown
from tbactl.supervision.signals import StoppedEarly, StopSignals
from tbactl.supervision.summary import print_summary
from tbactl.supervision.watchdog import is_anyone_busy, progress_of
from tbactl.telemetry.trace import run_trace

POLL_S = 0.1
# After a pause of the supervisor itself (a suspended machine) the children's words are as old as its own last look.
OWN_PAUSE_S = 1.0
# More than progress_timeout_s, for the run as a whole only: a wait within a process has the same limit, and its end
# says more, so it comes first, on a busy machine too. The watchdog judges a main loop by progress_timeout_s as it is.
OTHERS_FIRST_S = 4.0


class View(Protocol):
    """What shows the run. Called often; decides itself how often it draws."""

    def update(self) -> None:
        """Look at the run and show it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended."""

    outcome: Outcome
    exit_code: int
    error: TbactlError | None = None
    warning: str = ""
    """What a user must know of an ending that is not a failure."""

    def after(self, shutdown: Shutdown) -> Ending:
        """The same ending, unless the trainer failed on the way down: then nothing was saved, and that must be said."""
        failure = shutdown.failure
        if self.error is None and failure is not None:
            return Ending(outcome="failed", exit_code=failure.exit_code, error=failure)
        return replace(self, warning=shutdown.warning)

    def unwritten(self, problem: OSError) -> Ending:
        """The same ending where it cannot be written down, for the disk is full: no failure hides an earlier one.

        Raises:
            OSError: it cannot be written for another reason.
        """
        if not is_out_of_space(problem):
            raise problem
        if self.error is not None:
            return self
        error = CapacityError(f"how the run ended cannot be written: {problem}. Free some disk space and resume.")
        return Ending(outcome="failed", exit_code=error.exit_code, error=error)


def run_to_end(
    config: RunConfig,
    *,
    recipe_name: str,
    profile: Profile,
    resume: Path | None,
    plain: bool,
    on_prepared: Callable[[Path], None] = lambda run_directory: None,
    argv_for: ArgvBuilder = child_argv,
    shm_root: Path = SHM_ROOT,
) -> int:
    """Run a configuration from the first process's start to the last one's end.

    Args:
        config: all settings.
        recipe_name: for run.json.
        profile: `cpu` or `gpu`; `cpu` hides every device.
        resume: a run directory to continue from its last checkpoint.
        plain: lines instead of the live dashboard.
        on_prepared: told the run directory before anything starts.
        argv_for: command line of a child; another one in tests.
        shm_root: where shared memory is made; another place in tests.

    Returns:
        0 when it finished or `tbactl stop` ended it, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Raises:
        TbactlError: it could not start, or a child failed for good. Nothing of it runs any more, no memory is left.
    """
    clock = SystemClock()
    with StopSignals(clock=clock) as signals, Outlet(sys.stdout) as out, contextlib.ExitStack() as held:
        try:
            with signals.obeyed_at_once():  # to check a checkpoint or convert a policy may take minutes
                reclaimed = reclaim(shm_root)
                if resume is not None:
                    held.enter_context(sole_supervisor(resume))  # before a checkpoint is chosen
                run = prepare(
                    config,
                    recipe_name=recipe_name,
                    profile=profile,
                    resume=resume,
                    clock=clock,
                    argv_for=argv_for,
                    shm_root=shm_root,
                )
                if resume is None:
                    held.enter_context(sole_supervisor(run.root))
        except StoppedEarly as stop:
            say(f"stopped by {stop.request.signal_name} before anything was started.", sys.stderr)
            return stop.request.exit_code
        on_prepared(run.root)
        with EventLog(run.layout.events, clock=clock) as events:
            events.record("run_started", attempt=run.record.attempt, recipe=recipe_name, profile=profile)
            for stale in reclaimed:
                events.record("reclaimed", directory=str(stale.directory), size_bytes=stale.size_bytes)
            if run.resume_checkpoint is not None:
                events.record("resumed", checkpoint=str(run.resume_checkpoint))
            ending = _run_and_record(run, signals=signals, events=events, clock=clock, plain=plain, out=out)
        try:
            print_summary(run.layout, config=config, show=lambda line: out.write(f"{line}\n"))
        except OSError as error:
            ending = ending.unwritten(error)
    if ending.error is not None:
        raise ending.error
    if ending.warning:
        say(f"warning: {ending.warning}", sys.stderr)
    return ending.exit_code


def _run_and_record(
    run: RunDirectory, *, signals: StopSignals, events: EventLog, clock: Clock, plain: bool, out: Outlet
) -> Ending:
    """Run, and write into run.json how it ended, as the last thing and on every path."""
    started = run.record.model_copy(update={"outcome": "running"})
    run.write_record(started)
    point_symlink(run.root.parent / "latest", run.root.name)
    ending = Ending(outcome="failed", exit_code=1)
    facts: dict[str, Any] = {}
    try:
        with _shared_memory(run) as memory:
            supervisor = Supervisor(run, page=memory.page, signals=signals, events=events, clock=clock)
            with (
                open_view(
                    run.layout,
                    page=memory.page,
                    config=run.config,
                    record=started,
                    clock=clock,
                    plain=plain,
                    out=out,
                ) as view,
                run_trace(run.layout, is_wanted=run.config.logging.profile_trace),
            ):
                ending = supervisor.run(view)
            run.free_reserve()
            facts = supervisor.facts()
            write_text(run.layout.final_page, page_snapshot(memory.page).to_json())
    except TbactlError as error:
        ending = Ending(outcome="failed", exit_code=error.exit_code, error=error)
    except OSError as error:
        ending = ending.unwritten(error)
    finally:
        run.free_reserve()
        duration_s = round(events.elapsed_s, 3)
        events.record("run_ended", outcome=ending.outcome, exit_code=ending.exit_code, duration_s=duration_s, **facts)
        record = started.model_copy(
            update={
                "outcome": ending.outcome,
                "exit_code": ending.exit_code,
                "message": ending.warning if ending.error is None else str(ending.error),
                "ended_at": utc(clock.wall_s()),
                "duration_s": duration_s,
                **facts,
            }
        )
        try:
            run.write_record(record)
        except OSError as error:
            ending = ending.unwritten(error)
    return ending


@contextlib.contextmanager
def _shared_memory(run: RunDirectory) -> Iterator[SharedMemory]:
    memory = SharedMemory(run.shm, config=run.config, run_directory=run.root)
    try:
        yield memory
    finally:
        # Children are reaped by now; this ends what they started in sessions of its own.
        end_processes_of(run.shm.root)
        memory.remove()


class Supervisor:
    """Watches the children of one run from their start until all of them are reaped."""

    def __init__(
        self, run: RunDirectory, *, page: ControlPage, signals: StopSignals, events: EventLog, clock: Clock
    ) -> None:
        self._run = run
        self._config = run.config
        self._page = page
        self._signals = signals
        self._events = events
        self._clock = clock
        self._fleet = Fleet(run.config, run.specs, page=page, events=events, clock=clock, beat=self._beat)
        self._progress = ProgressRecorder(
            page, evaluations=run.layout.evaluations, events=events, num_completions=lambda: self._fleet.num_completions
        )
        self._view: View | None = None
        self._state = RunState.STARTING
        self._finished_s: float | None = None
        self._training_s: float | None = None
        self._run_moved_s = 0.0
        self._run_position: tuple[float, ...] = ()

    def run(self, view: View) -> Ending:
        """Start everything, watch it, end everything. No child lives when this returns or raises."""
        self._view = view
        self._page.supervisor.set(state=ProcessState.RUNNING, started_ns=int(self._clock.monotonic_s() * 1e9))
        try:
            ending = self._start_and_watch()
        except BaseException:
            self._shut_down(drain=False)
            raise
        return ending.after(self._shut_down(drain=True))

    def facts(self) -> dict[str, Any]:
        """What run.json says about the work done."""
        training_s = self._progress.training_s if self._training_s is None else self._training_s
        return {
            "training_s": round(training_s, 3),
            "steps": self._page.trainer().get("policy_version"),
            "completions": self._fleet.num_completions,
        }

    def _start_and_watch(self) -> Ending:
        try:
            self._beat()  # before any child looks at it
            self._fleet.start_all()
            return self._watch()
        except TbactlError as error:
            return Ending(outcome="failed", exit_code=error.exit_code, error=self._explained(error))

    def _explained(self, error: TbactlError) -> TbactlError:
        """The error that ends the run, with what everybody was doing; recorded, and their stacks in their logs."""
        inquest = Inquest.hold(
            self._fleet.signs(), shm=self._run.shm, num_searchers=self._config.searchers.num_searchers
        )
        self._events.record("run_failing", error=str(error).partition("\n")[0], **inquest.details())
        self._fleet.dump_stacks(self._fleet.alive(), should_stop=self._must_hurry)
        if not isinstance(error, ChildFailedError):
            return error  # a mistake of the user's: where the others were does not matter
        logs = self._run.specs[0].log_path.parent
        return ChildFailedError(
            f"{error}\nWhat each process was doing (the stacks of those that live are in {logs}):\n{inquest}"
        )

    def _watch(self) -> Ending:
        last_s = self._clock.monotonic_s()
        while True:
            self._tick()
            if self._signals.request is not None:
                request = self._signals.request
                self._events.record("stop_requested", signal=request.signal_name)
                return Ending(outcome=request.outcome, exit_code=request.exit_code)
            now = self._clock.monotonic_s()
            is_awake = now - last_s < OWN_PAUSE_S
            self._fleet.check(may_judge=is_awake, should_stop=self._must_hurry)
            if is_awake:
                self._check_run()
            last_s = now
            if self._state is RunState.STARTING and self._fleet.all_ready:
                self._start_training()
            if self._is_complete():
                return Ending(outcome="finished", exit_code=0)
            self._clock.sleep(POLL_S)

    def _tick(self) -> None:
        self._beat()
        self._progress.observe()
        if self._view is not None:
            try:
                self._view.update()
            except Exception as error:  # what shows a run must never end it
                self._events.record("view_failed", error=f"{type(error).__name__}: {error}")
                self._view = None

    def _beat(self) -> None:
        now_ns = int(self._clock.monotonic_s() * 1e9)
        slot = self._page.supervisor
        slot.set(heartbeat_ns=now_ns, progress_ns=now_ns, num_restarts=self._fleet.num_restarts)
        slot.add(progress_count=1)

    def _must_hurry(self) -> bool:
        return self._signals.hurry

    def _start_training(self) -> None:
        self._state = RunState.RUNNING
        self._page.supervisor.set(run_state=RunState.RUNNING)
        self._run_moved_s = self._clock.monotonic_s()
        self._progress.start_training()

    def _check_run(self) -> None:
        """The run as a whole must get on: a trainer may wait for groups that nobody is going to write.

        Raises:
            ChildFailedError: nothing has moved for too long.
        """
        if self._state is not RunState.RUNNING or self._finished_s is not None:
            return
        searchers = [self._page.searcher(index).snapshot() for index in range(self._page.num_searchers)]
        trainer = self._page.trainer().snapshot()
        position = progress_of(trainer, searchers)
        now = self._clock.monotonic_s()
        if position != self._run_position or is_anyone_busy(trainer, searchers):
            self._run_position, self._run_moved_s = position, now
            return
        still_s = now - self._run_moved_s
        limit_s = self._config.supervision.progress_timeout_s
        if still_s > limit_s + OTHERS_FIRST_S:
            raise ChildFailedError(
                f"the run stands still: everybody waits, without a completion or a step for {still_s:.0f} s "
                f"(supervision.progress_timeout_s = {limit_s:g})."
            )

    def _is_complete(self) -> bool:
        """Whether training has finished, and the final policy is evaluated (or that took too long)."""
        trainer = self._page.trainer()
        if not trainer.get("finished"):
            return False
        now = self._clock.monotonic_s()
        if self._finished_s is None:
            self._finished_s = now
            self._training_s = self._progress.training_s
        evaluation = self._config.evaluation
        final_version = trainer.get("policy_version")
        if not evaluation.num_prompts or self._page.searcher(0).get("evaluated_version_plus_1") == final_version + 1:
            self._progress.observe()  # its result, or that there is none
            return True
        limit_s = self._config.supervision.evaluation_timeout_s
        if now - self._finished_s > limit_s:
            reason = f"it took longer than supervision.evaluation_timeout_s = {limit_s:g}"
            self._progress.record_missed(final_version, reason=reason)
            return True
        return False

    def _shut_down(self, *, drain: bool) -> Shutdown:
        # A rank that has lost another one waits for it in a collective and would not get to its checkpoint.
        can_checkpoint = self._fleet.has_all_trainers and not self._page.trainer().get("finished")
        shutdown = Shutdown(
            self._fleet,
            page=self._page,
            signals=self._signals,
            events=self._events,
            clock=self._clock,
            tick=self._tick,
            grace_s=self._config.supervision.stop_grace_s,
        )
        shutdown.run(drain=drain and can_checkpoint, has_run=self._state is RunState.RUNNING)
        self._page.supervisor.set(state=ProcessState.STOPPED)
        return shutdown

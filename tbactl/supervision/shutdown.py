"""The one way a run's processes end, whatever the cause. Each step is tried even if the one before it failed."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tbactl.clock import Clock
from tbactl.errors import TbactlError
from tbactl.ipc.control_page import ControlPage, RunState
from tbactl.supervision.events import EventLog
from tbactl.supervision.fleet import STACK_DUMP_LIMIT_S, Fleet
from tbactl.supervision.signals import StopSignals

POLL_S = 0.05
# Of the grace time, what is kept for the stacks of those that have not left, and for SIGTERM to work.
TERMINATE_S = 2.0
# What a child that has said STOPPED may take to leave. It has closed everything; tearing down an interpreter full of
# libraries can take many seconds more, for nothing.
LEAVE_S = 1.0


class Shutdown:
    """Ends the children: asks through the control page, then by SIGTERM, then SIGKILL. Bounded by `grace_s`."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        page: ControlPage,
        signals: StopSignals,
        events: EventLog,
        clock: Clock,
        tick: Callable[[], None],
        grace_s: float,
    ) -> None:
        self._fleet = fleet
        self._page = page
        self._signals = signals
        self._events = events
        self._clock = clock
        self._tick = tick
        self._grace_s = grace_s
        self._stopped_since_s = clock.monotonic_s()
        self._stalled: set[int] = set()  # pids that were named
        self.failure: TbactlError | None = None
        """A trainer failed while it drained: there is no last checkpoint."""
        self.warning = ""
        """A trainer had to be ended while it drained: there may be no last checkpoint either."""

    def run(self, *, drain: bool, has_run: bool) -> None:
        """End all children.

        Args:
            drain: let the trainer write a checkpoint first.
            has_run: False while processes were still loading: they do not read the control page yet.
        """
        deadline_s = self._clock.monotonic_s() + self._grace_s
        ask_until_s = deadline_s - min(TERMINATE_S, self._grace_s / 2)
        if drain and has_run:
            self._try(lambda: self._announce(RunState.DRAINING))
            self._try(lambda: self._wait(ask_until_s, lambda: not self._trainers_alive()))
            self._try(self._check_drained)
        self._try(lambda: self._announce(RunState.STOPPING))
        if has_run:
            self._try(lambda: self._wait(ask_until_s, self._all_stopped))
            self._try(lambda: self._ask_for_stacks(deadline_s))
        self._try(self._terminate)
        self._try(lambda: self._wait(min(deadline_s, self._clock.monotonic_s() + TERMINATE_S), self._all_ended))
        self._try(self._kill)

    def _check_drained(self) -> None:
        try:
            self._fleet.check_drained()
        except TbactlError as error:
            self.failure = error
        if self._trainers_alive() and not self._signals.hurry:
            self.warning = (
                f"the trainer was still at work near the end of supervision.stop_grace_s = {self._grace_s:g} s: the "
                f"run may end without its last checkpoint. A resume goes on from the newest one that is complete; "
                f"raise the limit if checkpoints take so long."
            )

    def _announce(self, state: RunState) -> None:
        self._page.supervisor.set(run_state=state)
        self._events.record("run_state", state=state.name)

    def _ask_for_stacks(self, deadline_s: float) -> None:
        """Have those that were asked in vain say where they are. Half of the time that is left is SIGTERM's."""
        if not self._fleet.all_stopped and not self._signals.hurry:
            limit_s = min(STACK_DUMP_LIMIT_S, (deadline_s - self._clock.monotonic_s()) / 2)
            self._fleet.dump_stacks(self._fleet.alive(), limit_s=limit_s, should_stop=lambda: self._signals.hurry)

    def _terminate(self) -> None:
        for child in self._fleet.alive():
            self._events.record("child_terminated", process=child.spec.name, pid=child.pid)
            child.signal_group(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._fleet.alive():
            self._events.record("child_killed", process=child.spec.name, pid=child.pid)
            self._try(child.kill)

    def _all_ended(self) -> bool:
        return not self._fleet.alive()

    def _all_stopped(self) -> bool:
        """Whether those that still live have said for a while that they are done."""
        now = self._clock.monotonic_s()
        if not self._fleet.all_stopped:
            self._stopped_since_s = now
        return self._all_ended() or now - self._stopped_since_s > LEAVE_S

    def _trainers_alive(self) -> bool:
        return any(child.spec.role == "trainer" for child in self._fleet.alive())

    def _wait(self, until_s: float, is_done: Callable[[], bool]) -> None:
        while not is_done() and not self._signals.hurry and self._clock.monotonic_s() < until_s:
            self._tick()
            self._note_stalled()
            self._clock.sleep(POLL_S)

    def _note_stalled(self) -> None:
        """Say who holds up the end, as soon as the usual limits show it. It is ended with the rest, not before."""
        for child, reason in self._fleet.stalled():
            if child.pid not in self._stalled:
                self._stalled.add(child.pid)
                self._events.record("child_stalled", process=child.spec.name, pid=child.pid, reason=reason)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._events.record("shutdown_step_failed", error=f"{type(error).__name__}: {error}")

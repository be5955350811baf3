"""Waiting for searchers: bounded, interruptible by the run's end, and only as long as somebody lives."""

from __future__ import annotations

from collections.abc import Callable

from tbactl.clock import Clock
from tbactl.errors import ChildFailedError
from tbactl.ipc.child import Pulse
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState

POLL_S = 0.005


class Waiter:
    """The trainer's only way to wait.

    Args:
        page: of the run; searchers' heartbeats are signs of life.
        pulse: told that the trainer's own loop moves while it waits for a good reason.
        clock: time.
        timeout_s: silence after which a wait fails.
    """

    def __init__(self, page: ControlPage, *, pulse: Pulse, clock: Clock, timeout_s: float) -> None:
        self._page = page
        self._supervisor = page.supervisor
        self._searchers = [page.searcher(index) for index in range(page.num_searchers)]
        self._pulse = pulse
        self._clock = clock
        self._timeout_s = timeout_s

    @property
    def is_ending(self) -> bool:
        """Whether the supervisor wants the run to end."""
        return self._supervisor.get("run_state") >= RunState.DRAINING

    @property
    def must_leave(self) -> bool:
        """Whether there is no time even for a checkpoint."""
        return self._supervisor.get("run_state") >= RunState.STOPPING

    def note_progress(self) -> bool:
        """Report that the loop moves; returns `is_ending`. For learners, between two micro-batches."""
        self._pulse.progress()
        return self.is_ending

    def until(self, is_done: Callable[[], bool], *, what: str) -> bool:
        """Wait until `is_done()`, or the run is ending.

        Args:
            is_done: called again and again; it may do the work that is waited for.
            what: for the message.

        Returns:
            False when the run is ending first.

        Raises:
            ChildFailedError: no searcher has given a sign of life for the whole timeout.
        """
        heard_s, signs = self._clock.monotonic_s(), self._signs()
        while not is_done():
            if self.note_progress():
                return False
            self._clock.sleep(POLL_S)
            now_s, new_signs = self._clock.monotonic_s(), self._signs()
            if new_signs != signs:
                heard_s, signs = now_s, new_signs
            elif now_s - heard_s > self._timeout_s:
                raise ChildFailedError(self._silence(what, now_s - heard_s))
        return True

    def _signs(self) -> list[tuple[int, int]]:
        # Before the run begins it is the supervisor whom the trainer waits for; start_timeout_s bounds that.
        slots = self._searchers if self.has_begun else [self._supervisor]
        return [(slot.get("heartbeat_ns"), slot.get("progress_count")) for slot in slots]

    @property
    def has_begun(self) -> bool:
        """Whether all children were ready and the run goes on, or is already ending."""
        return self._supervisor.get("run_state") >= RunState.RUNNING

    def _silence(self, what: str, seconds: float) -> str:
        states = ", ".join(
            f"searcher-{index} (pid {slot.get('pid')}, {ProcessState(slot.get('state')).name})"
            for index, slot in enumerate(self._searchers)
        )
        return (
            f"the trainer waits for {what}, and for {seconds:.0f} s (supervision.progress_timeout_s) no searcher has "
            f"given a sign of life: {states}. Their logs say more."
        )

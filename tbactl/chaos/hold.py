"""What makes a fault strike on any machine: its phase lasts until it has been seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tbactl.chaos.faults import FROM_OUTSIDE, Fault, Phase
from tbactl.chaos.phase import holding_process, is_in_phase, may_drain
from tbactl.chaos.settings import BY_PROGRESS, HOLD_S, STUCK_HOLD_S, CaseLayout
from tbactl.chaos.trigger import after, before, wrap
from tbactl.clock import SystemClock
from tbactl.config.layout import ProcessConfig
from tbactl.ipc.control_page import ControlPage, RunState
from tbactl.testing.fake_engine import FakeEngine
from tbactl.testing.fake_learner import FakeLearner
from tbactl.trainer.intake import Intake

# The trainer's call without which a phase does not end.
CALLS: Mapping[Phase, tuple[type, str]] = {
    "filling": (Intake, "drain"),
    "running": (FakeLearner, "update"),
    "syncing": (FakeLearner, "write_weights"),
    "checkpointing": (FakeLearner, "save"),
    "draining": (FakeLearner, "save"),
}


def install_hold(fault: Fault, *, name: str, layout: CaseLayout, config: ProcessConfig) -> None:
    """In this process, if it is the one that makes the phase."""
    if name == holding_process(fault):
        Hold(fault, layout=layout, config=config).install()


class Hold:
    """Rests until the phase of a fault was seen; how long at most, in all the life of the process, is in the settings.

    Whether a fault strikes must not depend on who gets a core when. A fault from inside has to be armed before the call
    that is to fail. One from outside is to hit a process at its work, wherever that is: the rest comes after it.
    """

    def __init__(self, fault: Fault, *, layout: CaseLayout, config: ProcessConfig) -> None:
        self._fault = fault
        self._layout = layout
        self._is_trainer = config.role == "trainer"
        self._page = ControlPage.open(config.shm.control, read_only=True)
        self._last_version = config.run.trainer.max_steps - 1
        self._left_s = STUCK_HOLD_S if fault.kind in BY_PROGRESS else HOLD_S

    def install(self) -> None:
        """Into the calls that make the phase. What is wrapped last acts first."""
        fault = self._fault
        if fault.role == "searcher" and fault.phase != "loading":
            wrap(FakeLearner, "update", before(self._before_last_update))
        if fault.phase == "draining":
            wrap(FakeLearner, "update", before(lambda: self._rest_while(self._is_to_be_asked)))
        loading = (FakeLearner if self._is_trainer else FakeEngine, "__init__")
        around = after if fault.kind in FROM_OUTSIDE else before
        wrap(*CALLS.get(fault.phase, loading), around(lambda: self._rest_while(self._is_unseen)))

    def _is_unseen(self) -> bool:
        return not self._layout.seen.exists() and is_in_phase(self._page, self._fault)

    def _is_to_be_asked(self) -> bool:
        is_running = self._page.supervisor.get("run_state") == RunState.RUNNING
        return is_running and may_drain(self._fault, version=self._page.trainer().get("policy_version"))

    def _before_last_update(self) -> None:
        """The last chance of a searcher to strike itself."""
        if self._page.trainer().get("policy_version") == self._last_version:
            self._rest_while(self._layout.armed.exists)

    def _rest_while(self, is_so: Callable[[], bool]) -> None:
        started_s = time.monotonic()
        while is_so() and time.monotonic() - started_s < self._left_s:
            time.sleep(0.005)
        # A clock that is to jump does so when it is read, which a process that has only to leave may not do again.
        SystemClock().monotonic_s()
        self._left_s -= time.monotonic() - started_s

"""`python -m tbactl.chaos.child CASE CONFIG [--with-fault]`: a real trainer or searcher that leaves traces."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tbactl.chaos.books import Mark
from tbactl.chaos.faults import Fault
from tbactl.chaos.phase import is_in_phase, loading_process, may_drain
from tbactl.chaos.sabotage import install
from tbactl.chaos.settings import HOLD_S, SAVE_S, SYNC_S, CaseLayout
from tbactl.chaos.trigger import Hook, wrap
from tbactl.config.layout import ProcessConfig
from tbactl.ipc.child import run_and_leave
from tbactl.ipc.control_page import ControlPage, RunState
from tbactl.ipc.ring import RingWriter
from tbactl.searcher.__main__ import main as search
from tbactl.searcher.delivery import Outbox
from tbactl.searcher.scoring import ScoredGroup
from tbactl.testing.fake_engine import FakeEngine
from tbactl.testing.fake_learner import FakeLearner
from tbactl.trainer.__main__ import main as train
from tbactl.trainer.checkpointing import Checkpointing
from tbactl.trainer.intake import Intake
from tbactl.types import TrajectoryGroup


class Trace:
    """Appends marks; a line is with the kernel when `mark` returns, so a killed process leaves it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(self, mark: Mark, number: int) -> None:
        os.write(self._descriptor, f"{mark.value} {number}\n".encode())


def trace_trainer(trace: Trace) -> None:
    """Prompts that entered the buffer, checkpoints that were written or resumed from; and phases long enough to hit."""

    def admitting(original: Hook) -> Hook:
        def admit(intake: Intake, group: TrajectoryGroup) -> None:
            original(intake, group)
            trace.mark(Mark.ADMITTED, group.prompt_id)

        return admit

    def decoding(original: Hook) -> Hook:
        def decode(intake: Intake, payload: bytes) -> TrajectoryGroup | None:
            group = original(intake, payload)
            if group is None:
                trace.mark(Mark.UNDECODABLE, 0)
            return group

        return decode

    def writing(original: Hook) -> Hook:
        def write(checkpointing: Checkpointing) -> None:
            trace.mark(Mark.CHECKPOINT, checkpointing._state.policy_version)
            original(checkpointing)

        return write

    def resuming(original: Hook) -> Hook:
        def note_resumed(checkpointing: Checkpointing) -> None:
            trace.mark(Mark.RESUMED, checkpointing._state.policy_version)
            original(checkpointing)

        return note_resumed

    wrap(Intake, "admit", admitting)
    wrap(Intake, "_decode", decoding)
    wrap(Checkpointing, "write", writing)
    wrap(Checkpointing, "note_resumed", resuming)
    wrap(FakeLearner, "write_weights", _before(lambda: time.sleep(SYNC_S)))
    wrap(FakeLearner, "save", _before(lambda: time.sleep(SAVE_S)))


class Hold:
    """Keeps a run in the phase in which its fault is to strike until that has been seen from outside.

    Whether a fault strikes must not depend on who gets a core when.
    """

    def __init__(self, fault: Fault, *, layout: CaseLayout, config: ProcessConfig) -> None:
        self._fault = fault
        self._layout = layout
        self._page = ControlPage.open(config.shm.control, read_only=True)
        self._last_version = config.run.trainer.max_steps - 1

    def install(self, name: str) -> None:
        """In this process, if it is the one that makes the phase."""
        if self._fault.phase == "loading":
            if name == loading_process(self._fault):
                wrap(FakeLearner if name == "trainer-0" else FakeEngine, "__init__", _before(self._in_phase))
        elif name == "trainer-0":
            wrap(FakeLearner, "update", _before(self._before_update))
            for owner, method in ((FakeLearner, "write_weights"), (FakeLearner, "save"), (Intake, "drain")):
                wrap(owner, method, _before(self._in_phase))

    def _in_phase(self) -> None:
        _rest_while(lambda: not self._layout.seen.exists() and is_in_phase(self._page, self._fault))

    def _before_update(self) -> None:
        if self._fault.phase == "draining":
            _rest_while(self._is_to_be_asked)
        else:
            self._in_phase()
        if self._page.trainer().get("policy_version") == self._last_version:
            _rest_while(self._layout.armed.exists)  # the last chance of a searcher

    def _is_to_be_asked(self) -> bool:
        is_running = self._page.supervisor.get("run_state") == RunState.RUNNING
        return is_running and may_drain(self._fault, version=self._page.trainer().get("policy_version"))


def trace_searcher(trace: Trace) -> None:
    """Prompts whose group is in the ring, and prompts that were given up."""
    has_written = False

    def writing(original: Hook) -> Hook:
        def try_write(ring: RingWriter, payload: bytes) -> bool:
            nonlocal has_written
            has_written = original(ring, payload)
            return has_written

        return try_write

    def answering(original: Hook) -> Hook:
        def answer(outbox: Outbox, group: ScoredGroup) -> None:
            nonlocal has_written
            trace.mark(Mark.WRITTEN if has_written else Mark.GIVEN_UP, group.streamed.prompt.prompt_id)
            has_written = False
            original(outbox, group)

        return answer

    wrap(RingWriter, "try_write", writing)
    wrap(Outbox, "_answer", answering)


def _before(act: Callable[[], object]) -> Callable[[Hook], Hook]:
    """Act before each call."""

    def make(original: Hook) -> Hook:
        def wrapped(*arguments: object, **named: object) -> object:
            act()
            return original(*arguments, **named)

        return wrapped

    return make


def _rest_while(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + HOLD_S
    while is_so() and time.monotonic() < until_s:
        time.sleep(0.005)


def main() -> int:
    """Be the process of CONFIG."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--with-fault", action="store_true")
    arguments = parser.parse_args()
    layout = CaseLayout(arguments.case)
    config = ProcessConfig.model_validate_json(arguments.config.read_bytes())
    name = f"{config.role}-{config.index}"
    fault = msgspec.json.decode(layout.fault.read_bytes(), type=Fault)
    is_trainer = config.role == "trainer"
    # First: what makes a phase long enough to be seen from outside then comes before the fault's chance to strike.
    if arguments.with_fault and fault.target == name:
        install(fault, layout=layout)
    (trace_trainer if is_trainer else trace_searcher)(Trace(layout.trace(name)))
    if arguments.with_fault:
        Hold(fault, layout=layout, config=config).install(name)
    sys.argv[1:] = ["--config", str(arguments.config)]
    return train() if is_trainer else search()


if __name__ == "__main__":
    run_and_leave(main)

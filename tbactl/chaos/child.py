"""`python -m tbactl.chaos.child CASE CONFIG [--with-fault]`: a real trainer or searcher that leaves traces."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from tbactl.chaos.books import Mark
from tbactl.chaos.faults import Fault
from tbactl.chaos.hold import install_hold
from tbactl.chaos.sabotage import install
from tbactl.chaos.settings import SAVE_S, SYNC_S, CaseLayout
from tbactl.chaos.trigger import Hook, before, wrap
from tbactl.config.layout import ProcessConfig
from tbactl.ipc.child import run_and_leave
from tbactl.ipc.ring import RingWriter
from tbactl.searcher.__main__ import main as search
from tbactl.searcher.delivery import Outbox
from tbactl.searcher.scoring import ScoredGroup
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
    wrap(FakeLearner, "write_weights", before(lambda: time.sleep(SYNC_S)))
    wrap(FakeLearner, "save", before(lambda: time.sleep(SAVE_S)))


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
    trace = Trace(layout.trace(name))
    (trace_trainer if is_trainer else trace_searcher)(trace)
    trace.mark(Mark.STARTED, 0)
    if arguments.with_fault:
        install_hold(fault, name=name, layout=layout, config=config)
    sys.argv[1:] = ["--config", str(arguments.config)]
    exit_code = train() if is_trainer else search()
    if exit_code == 0:
        trace.mark(Mark.LEFT, 0)
    return exit_code


if __name__ == "__main__":
    run_and_leave(main)

"""How a run with a fault must end."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from tbactl.chaos.faults import Fault
from tbactl.errors import CapacityError, CheckpointError, ChildFailedError, TaskError
from tbactl.ipc.control_page import AlarmKind

FINISHED, INTERRUPTED, KILLED = 0, 130, -signal.SIGKILL

Sign = Literal["death", "failure-count", "alarm", "damage-count", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The right ending."""

    exit_code: int
    message: str = ""
    """A regular expression that the output must match."""
    sign: Sign = "nothing"
    """By what the run notices: a death or the run's end, failed completions, an alarm, damaged records."""
    about: AlarmKind = AlarmKind.NONE
    """Of an alarm."""

    def problem_of(self, exit_code: int, *, output: str) -> str | None:
        """What is wrong with an ending, or None."""
        if exit_code != self.exit_code:
            return f"exit code {exit_code} instead of {self.exit_code}"
        if not re.search(self.message, output, re.DOTALL):
            return f"the message does not say: {self.message}"
        return None


def expected(fault: Fault) -> Expected:
    """What must become of a run with this fault."""
    # A run that drains was asked to end: that is its exit code, unless its trainer fails before the checkpoint.
    well = INTERRUPTED if fault.phase == "draining" else FINISHED
    if fault.kind in ("full-shm", "full-disk"):
        return _without_space(fault)
    if fault.kind in ("slow", "clock-jump"):
        return Expected(exit_code=well)
    if fault.kind in ("kill", "stop", "raise"):
        return _of_process(fault, well=well)
    match fault.kind:
        case "nan-reward" | "infinite-reward" | "failing-engine":
            return Expected(exit_code=FINISHED, sign="failure-count")
        case "short-reward":
            return Expected(exit_code=TaskError.exit_code, message="3 rewards for 4 completions", sign="death")
        case "stuck-reward":
            return Expected(exit_code=TaskError.exit_code, message="has not returned for", sign="death")
        case "oversize-record":
            return Expected(exit_code=FINISHED, sign="alarm", about=AlarmKind.DELIVERY)
        case "wrong-weights":
            return Expected(exit_code=FINISHED, sign="alarm", about=AlarmKind.WEIGHTS)
        case "corrupt-record":
            return Expected(exit_code=FINISHED, sign="damage-count")
        case _:  # torn-record, failed-load, stuck-engine: the searcher dies and is started again
            return Expected(exit_code=FINISHED, sign="death")


def _of_process(fault: Fault, *, well: int) -> Expected:
    if fault.role == "supervisor":
        return Expected(exit_code=KILLED, sign="death")
    if fault.role == "searcher":
        return Expected(exit_code=well, sign="death")
    is_saving = fault.phase in ("checkpointing", "draining")
    if fault.kind == "raise" and is_saving:
        return Expected(exit_code=CheckpointError.exit_code, message="cannot write checkpoint", sign="death")
    how = {"kill": "killed by SIGKILL", "stop": "no heartbeat for", "raise": "injected fault"}[fault.kind]
    if fault.kind == "stop" and fault.phase == "loading":
        how = "it was stopped while it loaded"
    if fault.kind == "stop" and fault.phase == "draining":
        # It has all of the grace time, as long as a slow checkpoint would.
        return Expected(exit_code=INTERRUPTED, message="without its last checkpoint", sign="death")
    return Expected(exit_code=ChildFailedError.exit_code, message=f"trainer-0.*{how}", sign="death")


def _without_space(fault: Fault) -> Expected:
    if fault.kind == "full-disk":
        message = "No space left|Free some disk space|the disk is full"
    else:
        message = "MiB free, but this run needs" if fault.phase == "loading" else "no room for policy version"
    return Expected(exit_code=CapacityError.exit_code, message=message, sign="death")

"""Failures on request: what a fake engine or learner is told to do to itself, and when."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tbactl.config.sections import Section

HANG_POLL_S = 0.05

Place = Literal["start", "step", "load_policy", "update", "save"]


class Fault(Section):
    """One failure."""

    kind: Literal["raise", "exit", "kill", "stop", "hang", "starve"]
    """An exception; an exit code without one; SIGKILL or SIGSTOP to itself; a wait; from then on nothing finishes."""
    where: Place = "step"
    """In which call: `start` is the constructor."""
    after: Annotated[int, Field(ge=0)] = 0
    """Calls of that kind that go well before."""
    exit_code: int = 1
    """For `exit`."""
    until_file: Path | None = None
    """For `hang`: it ends when this file is there."""
    once_file: Path | None = None
    """Made when the fault strikes; while it exists, in whatever process, the fault does not strike again."""


class FaultInjector:
    """Counts calls and strikes when a fault is due."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._calls: Counter[Place] = Counter()
        self.is_starving = False
        """Whether a fault of kind `starve` has struck: the fake engine goes on with its steps and finishes nothing."""

    def reach(self, place: Place) -> None:
        """A call of this kind begins.

        Raises:
            RuntimeError: a fault of kind `raise` is due.
        """
        for fault in self._faults:
            if fault.where == place and self._calls[place] == fault.after and _claim(fault):
                self.is_starving = self.is_starving or fault.kind == "starve"
                _strike(fault)
        self._calls[place] += 1


def _claim(fault: Fault) -> bool:
    if fault.once_file is None:
        return True
    try:
        fault.once_file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _strike(fault: Fault) -> None:
    text = f"injected fault: {fault.kind} at {fault.where} after {fault.after}"
    print(text, file=sys.stderr, flush=True)
    match fault.kind:
        case "raise":
            raise RuntimeError(text)
        case "exit":
            os._exit(fault.exit_code)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            while fault.until_file is None or not fault.until_file.exists():
                time.sleep(HANG_POLL_S)

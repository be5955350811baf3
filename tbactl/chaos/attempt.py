"""One start of a run: the supervisor's process, watched from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tbactl.chaos.observer import Observer
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE

POLL_S = 0.01
# Children of a killed supervisor end with it, and those killed here; the kernel takes a moment to make them disappear.
VANISH_S = 30.0
# A supervisor that ends in order reaps them first.
ORDERLY_VANISH_S = 5.0


class Attempt:
    """Ends with everything it started, however its block is left.

    Args:
        argv: the program that supervises the run.
        observer: of that run.
        output: file to which goes what it prints, behind what is there.
    """

    def __init__(self, argv: Sequence[str], *, observer: Observer, output: Path) -> None:
        self.observer = observer
        self.started_s = time.monotonic()
        self._output = output
        with output.open("ab") as file:
            self._offset = file.tell()
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"HF_HUB_OFFLINE": "1", **os.environ},
            )
        self.pid = self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Of the supervisor; None: it runs."""
        return self._popen.poll()

    @property
    def output(self) -> str:
        """What it printed."""
        return self._output.read_bytes()[self._offset :].decode(errors="replace")

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self._popen.send_signal(signal.SIGINT)

    def look(self) -> None:
        """Wait a moment, then see what is new."""
        time.sleep(POLL_S)
        self.observer.look()

    def orphans(self) -> list[int]:
        """Children that have outlived the supervisor, and the moment that the kernel takes."""
        is_orderly = self.exit_code is not None and self.exit_code >= 0
        until_s = time.monotonic() + (ORDERLY_VANISH_S if is_orderly else VANISH_S)
        while (alive := self._children()) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        return alive

    def _children(self) -> list[int]:
        shm = self.observer.shm
        return [] if shm is None else list(processes_with(RUN_VARIABLE, str(shm)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(timeout=60.0)
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.orphans()

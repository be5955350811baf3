"""One start of a case's run: the supervisor's process, watched from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tbactl.chaos.observer import Observer
from tbactl.chaos.settings import CaseLayout
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE

POLL_S = 0.01
# Children of a killed supervisor end with it; the kernel takes a moment to make them disappear.
VANISH_S = 3.0


class Attempt:
    """Ends with everything it started, however its block is left."""

    def __init__(self, layout: CaseLayout, *, shm_root: Path, resume: Path | None = None) -> None:
        self.observer = Observer(layout.runs, attempt=2 if resume else 1)
        self._layout = layout
        self.started_s = time.monotonic()
        argv = [sys.executable, "-m", "tbactl.chaos.supervise", str(layout.root), str(shm_root)]
        argv += ["--resume", str(resume)] if resume else []
        with layout.output.open("ab") as output:
            self._offset = output.tell()
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.pid = self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Of the supervisor; None: it runs."""
        return self._popen.poll()

    @property
    def output(self) -> str:
        """What it printed."""
        return self._layout.output.read_bytes()[self._offset :].decode(errors="replace")

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self._popen.send_signal(signal.SIGINT)

    def look(self) -> None:
        """Wait a moment, then see what is new."""
        time.sleep(POLL_S)
        self.observer.look()

    def orphans(self) -> list[int]:
        """Children that have outlived the supervisor."""
        until_s = time.monotonic() + VANISH_S
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
        self._popen.wait(timeout=10.0)
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

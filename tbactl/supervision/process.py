"""One child process: started in its own session with its own log, ended with its whole group, always reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tbactl.clock import Clock
from tbactl.terminal import printable

TAIL_LINES = 20
TAIL_BYTES = 16_384
LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start."""

    role: Literal["trainer", "searcher"]
    index: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path

    @property
    def name(self) -> str:
        """`searcher-0`, as in file names and events."""
        return f"{self.role}-{self.index}"


class ChildProcess:
    """A child from its start to its reaping. The supervisor's thread alone uses it.

    The child is the leader of a new session: the terminal's Ctrl-C does not reach it, and whatever it starts itself
    stays in its process group and ends with it.
    """

    def __init__(self, spec: ProcessSpec, *, clock: Clock) -> None:
        self.spec = spec
        self.started_s = clock.monotonic_s()
        self.exit_code: int | None = None
        """As `subprocess`: negative is the signal that killed it. None: it runs."""
        with spec.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._popen = subprocess.Popen(
                spec.argv,
                env=dict(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        """Exit code once it has ended (then what is left of its group is killed, and it is reaped), else None."""
        if self.exit_code is None and self._has_ended():
            self._reap()
        return self.exit_code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        # Not by Popen, which would reap one that has just ended: then its group could no longer be named.
        if self.exit_code is None:
            os.kill(self.pid, number)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and everything it has started."""
        if self.exit_code is None:
            _kill_group(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the group and reap. SIGKILL cannot be refused, so the wait is short; it has a bound all the same."""
        if self.exit_code is None:
            self.signal_group(signal.SIGKILL)
            self._reap()

    def describe_exit(self) -> str:
        """'killed by SIGKILL', 'exit code 3'."""
        assert self.exit_code is not None
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"killed by signal {-self.exit_code}"

    def tail(self) -> list[str]:
        """The last lines this process (not an earlier one with the same log) wrote, safe for a terminal."""
        return log_tail(self.spec.log_path, start=self._log_offset)

    def log_size(self) -> int:
        """Bytes in its log. 0 where there is none."""
        try:
            return self.spec.log_path.stat().st_size
        except FileNotFoundError:
            return 0

    def _has_ended(self) -> bool:
        # WNOWAIT leaves it a zombie: its pid, also its group's id, cannot be reused before the group is killed.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _reap(self) -> None:
        _kill_group(self.pid, signal.SIGKILL)
        self.exit_code = self._popen.wait(timeout=30.0)


def _kill_group(group: int, number: signal.Signals) -> None:
    # An error: nobody is left in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def log_tail(path: Path, *, start: int = 0) -> list[str]:
    """The last `TAIL_LINES` lines of a log from byte `start` on, without control characters and blank lines."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    # A progress bar rewrites its line after a carriage return: only the last state is of interest.
    lines = (printable(line.rpartition("\r")[2] or line).rstrip() for line in text.split("\n"))
    return [line[:LINE_CHARACTERS] for line in lines if line][-TAIL_LINES:]

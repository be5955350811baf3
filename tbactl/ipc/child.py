"""What every child process does first: tie its life to the supervisor's, and let its pulse be seen.

A child must never outlive its supervisor, whatever kills that one. Two ties: the kernel sends SIGKILL when the parent
dies (PR_SET_PDEATHSIG), and the pulse thread leaves when the supervisor's own heartbeat has stopped for too long.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from tbactl.ipc.control_page import ProcessState, Slot

PR_SET_PDEATHSIG = 1
PULSE_S = 0.25
EXIT_ORPHANED = 5


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends. Linux only; elsewhere the pulse is the only tie."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent or parent == 1:  # it died before the request was in place
        os._exit(EXIT_ORPHANED)


def bind_to_cores(cores: Sequence[int]) -> None:
    """Run on these CPU cores only; none given: no restriction. Before numerical libraries start their threads."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def leave(exit_code: int) -> NoReturn:
    """End this process now, without the interpreter's own tear-down.

    Everything of ours is closed by then. What is left is the heap of an engine or a trainer: collecting it object by
    object at exit takes seconds, which would be seconds of every stop.
    """
    with contextlib.suppress(OSError):  # the log's disk may be full; the exit code must get through
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def report(text: str) -> None:
    """A last word on standard error. On a full disk it is lost, and the exit code alone says what went wrong."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of `main`, or with 1 and its traceback.

    Also after an error: a thread that a library left behind would keep the interpreter from ending.
    """
    try:
        exit_code = main()
    except Exception:
        report(traceback.format_exc())
        exit_code = 1
    leave(exit_code)


class Pulse:
    """Writes a slot's heartbeat from a thread, and records the main loop's progress.

    The heartbeat says that the process is scheduled at all (not stopped, not swapped out); `progress` says that its
    main loop moves. The supervisor judges both.
    """

    def __init__(self, slot: Slot, *, supervisor: Slot | None, supervisor_timeout_s: float = 60.0) -> None:
        self._slot = slot
        self._supervisor = supervisor
        self._timeout_ns = int(supervisor_timeout_s * 1e9)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Report the pid and begin to beat. SIGUSR1 makes the process print all its stacks (for the watchdog)."""
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        self._slot.set(pid=os.getpid(), heartbeat_ns=time.monotonic_ns(), progress_ns=time.monotonic_ns())
        self._thread.start()

    def enter(self, state: ProcessState) -> None:
        """Report a new state, which is progress."""
        self._slot.set(state=state)
        self.progress()

    def progress(self) -> None:
        """The main loop has done something."""
        self._slot.set(progress_ns=time.monotonic_ns())
        self._slot.add(progress_count=1)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.wait(PULSE_S):
            now = time.monotonic_ns()
            self._slot.set(heartbeat_ns=now)
            if self._supervisor is not None and now - self._supervisor.get("heartbeat_ns") > self._timeout_ns:
                report("the supervisor's heartbeat has stopped: leaving")
                os._exit(EXIT_ORPHANED)

"""Faults from outside: signals to a process, a damaged byte in shared memory, a full file system."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from tbactl.chaos.books import RingGauge
from tbactl.chaos.faults import Fault
from tbactl.chaos.observer import Observer
from tbactl.chaos.small_disk import fill

# Stopped for three quarters of the time, never as long as a heartbeat may be late.
SLOW_STOPPED_S, SLOW_RUNNING_S, SLOW_ROUNDS = 0.15, 0.05, 8
# For two unread records to gather while their reader is stopped.
GATHER_S = 5.0


def strike(fault: Fault, *, observer: Observer, supervisor: int, full: Path | None) -> bool:
    """Strike now.

    Args:
        fault: what to do.
        observer: of the run.
        supervisor: its pid.
        full: the small file system to fill.

    Returns:
        False where the fault comes from inside the target, or could not be made: no record was there to damage.
    """
    pid = supervisor if fault.role == "supervisor" else observer.pid(fault.target)
    assert pid is not None
    match fault.kind:
        case "kill":
            send(pid, signal.SIGKILL)
        case "stop":
            send(pid, signal.SIGSTOP)
        case "slow":
            threading.Thread(target=_slow_down, args=(pid,), daemon=True).start()
        case "corrupt-record":
            reader = observer.pid("trainer-0")
            assert reader is not None
            return _damage(observer.rings[int(fault.target.partition("-")[2])], reader=reader)
        case "full-shm" | "full-disk" if full is not None:
            fill(full)
        case _:
            return False
    return True


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _slow_down(pid: int) -> None:
    for _ in range(SLOW_ROUNDS):
        send(pid, signal.SIGSTOP)
        time.sleep(SLOW_STOPPED_S)
        send(pid, signal.SIGCONT)
        time.sleep(SLOW_RUNNING_S)


def _damage(ring: RingGauge, *, reader: int) -> bool:
    send(reader, signal.SIGSTOP)
    try:
        until_s = time.monotonic() + GATHER_S
        while not (is_damaged := ring.damage_newest_unread()) and time.monotonic() < until_s:
            time.sleep(0.005)
        return is_damaged
    finally:
        send(reader, signal.SIGCONT)

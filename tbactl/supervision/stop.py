"""`tbactl stop`: ask the supervisor of a run, from another terminal, to end it with a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from tbactl.clock import Clock, SystemClock
from tbactl.config.run_record import read_run_record
from tbactl.errors import ChildFailedError, ConfigError
from tbactl.supervision.identity import is_alive
from tbactl.supervision.signals import STOP_SIGNAL

POLL_S = 0.1


def request_stop(run_directory: Path, *, timeout_s: float, clock: Clock | None = None) -> int:
    """Signal the supervisor and wait for the end of the run.

    Args:
        run_directory: of a run that is alive.
        timeout_s: longest wait; 0 does not wait.
        clock: None: the system's.

    Returns:
        0.

    Raises:
        ConfigError: the run is not alive, or belongs to another user.
        ChildFailedError: it did not end in time; it may still be about to.
    """
    clock = clock or SystemClock()
    record = read_run_record(run_directory)
    if record.outcome != "running" or not is_alive(record.pid, started=record.pid_start_ticks):
        state = "was killed" if record.outcome == "running" else f"is not running ({record.outcome})"
        raise ConfigError(f"{run_directory} {state}: there is nothing to stop.")
    try:
        os.kill(record.pid, STOP_SIGNAL)
    except PermissionError:
        raise ConfigError(f"{run_directory} belongs to another user (pid {record.pid}): you cannot stop it.") from None
    deadline_s = clock.monotonic_s() + timeout_s
    while timeout_s > 0:
        if read_run_record(run_directory).outcome != "running" or not is_alive(
            record.pid, started=record.pid_start_ticks
        ):
            return 0
        if clock.monotonic_s() > deadline_s:
            raise ChildFailedError(
                f"{run_directory} has not ended within {timeout_s:g} s of the request (pid {record.pid}); it is "
                f"asked, and may still be writing its checkpoint. Its grace time is supervision.stop_grace_s."
            )
        clock.sleep(POLL_S)
    return 0

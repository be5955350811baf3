"""A heavy child of a command (`python -m tbactl.evaluation` or `tbactl.sft`): started, watched, never orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tbactl.errors import (
    CapacityError,
    CheckpointError,
    ChildFailedError,
    ConfigError,
    TaskError,
    TbactlError,
)
from tbactl.ipc.child import die_with_parent
from tbactl.supervision.process import log_tail

STOP_GRACE_S = 10.0
FAILURES = {kind.exit_code: kind for kind in (ConfigError, TaskError, ChildFailedError, CapacityError, CheckpointError)}


def run_child(module: str, arguments: Sequence[str], *, log: Path | None, scratch: Path | None = None) -> str:
    """Run `python -m MODULE ARGUMENTS` to its end; returns what it wrote to standard output.

    Args:
        module: a package with a `__main__`.
        arguments: its arguments.
        log: file for its standard error; None passes it through.
        scratch: where it makes its temporary files, which the caller removes; None: where the system says.

    Raises:
        TbactlError: it failed; of the class that its exit code names, with what it wrote to standard output, which is
            its own message, else with the last lines of its log.
        KeyboardInterrupt: Ctrl-C; the child has been ended.
    """
    with _standard_error(log) as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            # A message with characters that the locale lacks must get through.
            env=os.environ
            | {"PYTHONIOENCODING": "utf-8:backslashreplace"}
            | ({} if scratch is None else {"TMPDIR": str(scratch)}),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        output, _ = child.communicate()
    finally:
        signal.signal(signal.SIGTERM, previous)
        _end_group(child)
    if child.returncode != 0:
        raise _failure(module, child.returncode, log=log, output=output)
    return output


@contextmanager
def _standard_error(log: Path | None) -> Iterator[int | None]:
    if log is None:
        yield None
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    except OSError as error:
        raise ConfigError(f"{log} cannot be written: {error.strerror}; choose another directory.") from None
    with file:
        yield file.fileno()


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _end_group(child: subprocess.Popen[str]) -> None:
    # Asked first, so that a training can write its checkpoint; then, with whatever it started, killed and reaped.
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(timeout=STOP_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=STOP_GRACE_S)


def _failure(module: str, exit_code: int, *, log: Path | None, output: str) -> TbactlError:
    if exit_code in FAILURES and output.strip():
        return FAILURES[exit_code](output.strip())
    ending = f"exit code {exit_code}" if exit_code >= 0 else f"killed by {signal.Signals(-exit_code).name}"
    tail = "".join(f"\n  | {line}" for line in log_tail(log)) if log is not None else ""
    kind = FAILURES.get(exit_code, ChildFailedError)
    return kind(f"{module} failed ({ending}){': its last lines:' if tail else ''}{tail}")

"""Every failure tbactl reports, with the exit code a shell sees.

    TbactlError                      1
    |-- ConfigError      (ValueError)   3   a recipe, an override or a combination of settings is wrong
    |-- TaskError        (ValueError)   4   a task, its data or its reward breaks its contract
    |-- ChildFailedError (RuntimeError) 5   a trainer or searcher process died or stalled for good
    |-- CapacityError    (MemoryError)  6   memory, /dev/shm or a ring is too small
    `-- CheckpointError  (ValueError)   7   a checkpoint is missing, broken or of another run

Exit code 2 is a usage error (click), 130 is SIGINT, 143 is SIGTERM. A message says what was wrong, the value, what is
allowed and what to do. `assert` is for our own invariants, never for the user's mistakes.
"""

from __future__ import annotations

import errno

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TbactlError(Exception):
    """Base of every failure that is reported to the user without a traceback."""

    exit_code = 1


class ConfigError(TbactlError, ValueError):
    """A recipe or an override is wrong; `problems` holds one full sentence for each mistake found."""

    exit_code = 3

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class TaskError(TbactlError, ValueError):
    """A task is unknown, its data is malformed, or its reward function breaks the protocol."""

    exit_code = 4


class ChildFailedError(TbactlError, RuntimeError):
    """A child process died, or stopped making progress, beyond what the restart policy allows."""

    exit_code = 5


class CapacityError(TbactlError, MemoryError):
    """Something does not fit: a record in its ring, a ring in /dev/shm, a model in memory."""

    exit_code = 6


class CheckpointError(TbactlError, ValueError):
    """A checkpoint is missing, incomplete, damaged, or does not belong to this configuration."""

    exit_code = 7


def is_out_of_space(error: BaseException, /) -> bool:
    """Whether writing failed because a file system or a quota is full.

    Libraries written in other languages (safetensors) pass the operating system's error on as text only.
    """
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error)

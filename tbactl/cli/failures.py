"""The one place where a failure becomes text and an exit code."""

from __future__ import annotations

import errno
import json
import sys

import typer
from pydantic import ValidationError
from typer.exceptions import TyperException

from tbactl.cli.output import plain
from tbactl.config.problems import allowed
from tbactl.dashboard.outlet import say
from tbactl.errors import EXIT_USAGE, CapacityError, ConfigError, TbactlError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Longer lines are cut: a user's own value of a megabyte says no more than its ends.
LINE_CHARACTERS = 1000


def report(error: Exception, *, as_json: bool) -> int | None:
    """Print a failure that is the user's to mend; returns its exit code, or None when the fault is ours."""
    if isinstance(error, TbactlError):
        problems = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
        exit_code = error.exit_code
    elif isinstance(error, TyperException):
        problems, exit_code = [_usage_problem(error)], error.exit_code
    elif isinstance(error, typer.Abort):
        problems, exit_code = ["aborted"], 1
    elif isinstance(error, OSError):
        problems = [f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"]
        exit_code = CapacityError.exit_code if error.errno in NO_ROOM else ConfigError.exit_code
    elif isinstance(error, RecursionError):
        problems, exit_code = ["a file or a value is nested too deeply"], ConfigError.exit_code
    elif isinstance(error, ValidationError):
        problems = [
            f"a file of this run is damaged or of another version of tbactl ({error.title}): {error.errors()[0]['msg']}"
        ]
        exit_code = ConfigError.exit_code
    else:
        return None
    if as_json:
        document = {"error": type(error).__name__, "exit_code": exit_code, "problems": problems}
        say(json.dumps(document, indent=2), sys.stderr)
    else:
        say(_as_text(problems), sys.stderr)
        if exit_code == EXIT_USAGE:
            context = getattr(error, "ctx", None)
            say(f"See `{context.command_path if context else 'tbactl'} --help`.", sys.stderr)
    return exit_code


def _usage_problem(error: TyperException) -> str:
    message = error.format_message()
    if isinstance(error.__cause__, ValidationError):  # which Typer passes on without the value
        details = error.__cause__.errors()[0]
        message = message.replace(details["msg"], f"'{details['input']}' {allowed(details)}")
    return message if message.endswith(("?", ".", ")")) else f"{message}."


def _as_text(problems: list[str]) -> str:
    if len(problems) == 1:
        return f"error: {_readable(problems[0])}"
    lines = [f"error: {len(problems)} problems"]
    lines.extend(f"  {number}. {_readable(problem)}" for number, problem in enumerate(problems, start=1))
    return "\n".join(lines)


def _readable(problem: str) -> str:
    """Without what commands a terminal, and without the middle of lines that nobody would read."""
    lines = plain(problem, keep_lines=True).split("\n")
    return "\n".join(line if len(line) <= LINE_CHARACTERS else _cut(line) for line in lines)


def _cut(line: str) -> str:
    half = LINE_CHARACTERS // 2
    return f"{line[:half]} [... {len(line) - 2 * half} characters ...] {line[-half:]}"

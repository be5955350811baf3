"""A process that has everything imported and answers each request by forking: a case costs milliseconds, not seconds.

Each case is a process of its own all the same, with its own directory, environment, streams and exit code. What a
command would start as `python -m MODULE` (an evaluation, a training) is forked, too.

Requests and answers are lines of JSON: {"directory", "arguments", "environment"} and {"exit_code"}; standard
output and error of the case go to files of these names beside the directory.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tbactl.cli import child, main
from tbactl.cli.commands import eval as eval_command
from tbactl.cli.commands import reward as reward_command
from tbactl.cli.commands import sft as sft_command

TIMEOUT_S = 200.0
HANGS = 124
# What every heavy child imports.
PRELOADED = (
    "tbactl.cli.failures",
    "tbactl.cli.commands.run",
    "tbactl.cli.commands.tasks",
    "tbactl.cli.commands.chaos",
    "tbactl.cli.commands.buffer",
    "tbactl.cli.commands.watch",
    "tbactl.supervision.supervisor",
    "tbactl.dashboard.watch",
    "tbactl.evaluation.evaluate",
    "tbactl.sft.__main__",
    "tbactl_math.task",
    "tbactl_preference.reward_train",
    "tbactl_redteam.task",
)


def serve() -> None:
    """Answer requests until standard input ends."""
    for module in PRELOADED:
        importlib.import_module(module)
    commands: tuple[Any, ...] = (eval_command, sft_command, reward_command)
    for command in commands:
        command.run_child = run_forked_child
    for line in sys.stdin:
        request = json.loads(line)
        exit_code = forked(lambda request=request: _case(request))
        print(json.dumps({"exit_code": exit_code}), flush=True)
    os._exit(0)  # the tear-down of all that was imported takes long


def _case(request: dict[str, Any]) -> int:
    directory = Path(request["directory"])
    os.chdir(directory)
    for name, value in request["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    sys.path[1:1] = os.environ["PYTHONPATH"].split(":")
    _redirect(0, Path(os.devnull))
    _redirect(1, directory.with_suffix(".out"))
    _redirect(2, directory.with_suffix(".err"))
    return main.main(request["arguments"])


def run_forked_child(module: str, arguments: Sequence[str], *, log: Path | None, scratch: Path | None = None) -> str:
    """As `tbactl.cli.child.run_child`, without a new interpreter."""
    output = Path(tempfile.mkdtemp()) / "output"

    def run() -> int:
        _redirect(1, output)
        if log is not None:
            _redirect(2, log)
        sys.argv = [module, *arguments]
        if scratch is not None:
            tempfile.tempdir = str(scratch)
        return importlib.import_module(_main_module(module)).main()

    with child._standard_error(log):
        exit_code = forked(run)
    if exit_code != 0:
        raise child._failure(module, exit_code, log=log, output=output.read_text())
    return output.read_text()


def _main_module(module: str) -> str:
    return f"{module}.__main__" if hasattr(sys.modules[module], "__path__") else module


def forked(run: Callable[[], int]) -> int:
    """Exit code of `run` in a fork of this process, HANGS when it takes too long; as a shell shows it."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            exit_code = run()
        except SystemExit as error:
            exit_code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            exit_code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return HANGS
        time.sleep(0.002)


def _redirect(descriptor: int, path: Path) -> None:
    flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    file = os.open(path, flags, 0o600)
    os.dup2(file, descriptor)
    os.close(file)


if __name__ == "__main__":
    serve()

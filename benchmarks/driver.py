"""`tbactl run` in a process of its own, from its start to its end, for benchmarks that run it many times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.ipc.child import die_with_parent
from tbactl.supervision.signals import STOP_SIGNAL

POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """How a run ended. `problem` says why it failed, and `directory` may be missing then."""

    seconds: float
    """From the command's start to its end."""
    directory: Path | None = None
    problem: str = ""


def run_recipe(
    recipe: str,
    *,
    overrides: Sequence[str],
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> FinishedRun:
    """Run a recipe, without network unless HF_HUB_OFFLINE=0 is set.

    Args:
        recipe: as for `tbactl run`.
        overrides: `KEY=VALUE`, as for `--set`.
        profile: `cpu` or `gpu`; None: what fits the hardware.
        environment: on top of this process's.
        is_enough: asked twice a second; once it says so the run is asked to stop, and ends with a checkpoint. It must
            not be so before the run has begun to train.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run has ended.
    """
    command = [sys.executable, "-m", "tbactl.cli", "run", recipe, "--plain", "--json"]
    command += ["--profile", profile] if profile else []
    command += [part for override in overrides for part in ("--set", override)]
    variables = {"HF_HUB_OFFLINE": "1", **os.environ, **(environment or {})}
    start_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output, tempfile.TemporaryFile("w+b") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=variables,
            preexec_fn=die_with_parent,
        )
        try:
            _watch(process, is_enough=is_enough)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        seconds = time.monotonic() - start_s
        output.seek(0)
        errors.seek(0)
        document, messages = output.read(), errors.read().decode(errors="replace")
    if process.returncode == 130:
        raise KeyboardInterrupt
    directory = Path(json.loads(document)["run_directory"]) if document.strip() else None
    if process.returncode == 0:
        return FinishedRun(seconds=seconds, directory=directory)
    problem = f"exit code {process.returncode}: {_reason(messages)[:200]}"
    return FinishedRun(seconds=seconds, directory=directory, problem=problem)


def _reason(messages: str) -> str:
    """The first problem of the JSON document that ends what a failed command says, or else its last line."""
    try:
        return json.loads(messages[f"\n{messages}".rfind("\n{\n") :])["problems"][0]
    except ValueError:
        return (messages.strip().splitlines() or ["no message"])[-1]


def _watch(process: subprocess.Popen, *, is_enough: Callable[[], bool]) -> None:
    is_asked = False
    while process.poll() is None:
        if not is_asked and is_enough():
            process.send_signal(STOP_SIGNAL)
            is_asked = True
        time.sleep(POLL_S)

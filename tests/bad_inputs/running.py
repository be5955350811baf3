"""Tries a case: makes its directory, runs its command, and says what came of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bad_inputs.bad_tasks import install_bad_tasks
from tests.bad_inputs.case import Case
from tests.bad_inputs.zygote import HANGS, TIMEOUT_S

ROOT = Path(__file__).parents[2]
# In the environment of every case; no message and no file may hold it.
SECRET = "s3cret-0123456789"
SECRET_NAMES = ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")
# A run that needs no model and takes a second.
OK_RECIPE = """
[task]
kind = "fake"

[policy]
path = "some/policy"

[searchers]
engine = "fake"
num_completions = 4

[trainer]
kind = "fake"
max_steps = 4
prompts_per_step = 2
completions_per_prompt = 4

[replay]
initial_trajectories = 8

[checkpoint]
period = 2

[logging]
tensorboard = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a user would have seen, and what has changed on the disk."""

    exit_code: int
    stdout: str
    stderr: str
    changed: tuple[str, ...]
    holds_secret: bool

    @property
    def message(self) -> str:
        """Standard error with single spaces."""
        return " ".join(self.stderr.split())


class Bench:
    """Where cases are tried. Owns the zygote; `close` ends it.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths = [str(install_bad_tasks(root / "plugins"))]
        self._template: Path | None = None
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.bad_inputs.zygote"],
            cwd=ROOT,
            env=self._environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the zygote."""
        assert self._zygote.stdin and self._zygote.stdout
        self._zygote.stdin.close()
        self._zygote.wait(timeout=120)
        self._zygote.stdout.close()

    def try_case(self, case: Case) -> Outcome:
        """Run a case in a directory of its own."""
        directory = Path(tempfile.mkdtemp(dir=self._root, prefix=f"{case.name[:40]}-"))
        if case.has_run:
            shutil.copytree(self._finished_run(), directory, symlinks=True, dirs_exist_ok=True)
        (directory / "ok.toml").write_text(OK_RECIPE)
        for name, content in case.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        case.prepare(directory)
        before = _contents(directory)
        run = self._run_in_shell if case.shell else self._run_forked
        exit_code = run(case, directory)
        after = _contents(directory)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        outcome = Outcome(
            exit_code=exit_code,
            stdout=directory.with_suffix(".out").read_text(errors="replace"),
            stderr=directory.with_suffix(".err").read_text(errors="replace"),
            changed=tuple(changed),
            holds_secret=any(SECRET.encode() in content for _, content in after.values()),
        )
        shutil.rmtree(directory)
        return outcome

    def _run_forked(self, case: Case, directory: Path) -> int:
        assert self._zygote.stdin and self._zygote.stdout
        request: dict[str, Any] = {
            "directory": str(directory),
            "arguments": shlex.split(case.command),
            "environment": {"PYTHONPATH": ":".join([*self._paths, str(ROOT)]), **case.environment},
        }
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())["exit_code"]

    def _run_in_shell(self, case: Case, directory: Path) -> int:
        tbactl = f"{shlex.quote(sys.executable)} -m tbactl.cli"
        with (
            directory.with_suffix(".out").open("wb") as stdout,
            directory.with_suffix(".err").open("wb") as stderr,
        ):
            try:
                done = subprocess.run(
                    ["bash", "-c", f'tbactl() {{ {tbactl} "$@"; }}; {case.command}'],
                    cwd=directory,
                    env=self._environment(case.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    timeout=TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                return HANGS
        return done.returncode

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
            **dict.fromkeys(SECRET_NAMES, SECRET),
            "PYTHONPATH": ":".join([*self._paths, str(ROOT)]),
        }
        for name, value in changes.items():
            environment.pop(name, None) if value is None else environment.update({name: value})
        return environment

    def _finished_run(self) -> Path:
        if self._template is None:
            self._template = self._root / "template"
            self._template.mkdir()
            (self._template / "ok.toml").write_text(OK_RECIPE)
            done = Case("template", "run ok.toml --plain", 0, ())
            assert self._run_forked(done, self._template) == 0, self._template.with_suffix(".err").read_text()
            (run,) = (path for path in (self._template / "runs").iterdir() if not path.is_symlink())
            (self._template / "runs" / "latest").unlink()
            run.rename(run.with_name("r"))
        return self._template


def problems_of(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with how a case ended; empty when all is well."""
    found: list[str] = []
    if outcome.exit_code != case.exit_code:
        found.append(f"exit code {outcome.exit_code} instead of {case.exit_code}")
    if "Traceback" in outcome.stdout + outcome.stderr:
        found.append("a traceback")
    if outcome.holds_secret or SECRET in outcome.stdout + outcome.stderr:
        found.append("a secret of the environment")
    num_errors = sum(line.startswith("error:") for line in outcome.stderr.splitlines())
    if "--json" in case.command:
        if not _ends_in_json(outcome.stderr):
            found.append("standard error does not end in one JSON document")
    elif num_errors != 1:
        found.append(f"{num_errors} error messages instead of one")
    found.extend(f"the message lacks {words!r}" for words in case.says if words not in outcome.message)
    written = [name for name in outcome.changed if not name.startswith(case.may_write or ("\0",))]
    if written:
        found.append(f"written or changed: {', '.join(written[:5])}")
    return found


def _ends_in_json(text: str) -> bool:
    start = text.find("{\n")
    try:
        return start >= 0 and {"error", "exit_code", "problems"} == set(json.loads(text[start:]))
    except ValueError:
        return False


def _contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = (0, os.readlink(path).encode())
        elif path.is_file() and os.access(path, os.R_OK):
            data = path.read_bytes() if path.stat().st_size < 2**20 else b""
            found[name] = (path.stat().st_size, data)
        else:
            found[name] = (0, b"")
    return found

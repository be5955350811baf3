"""The live dashboard on a real terminal, also one that is far too small."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

pytestmark = pytest.mark.slow

RECIPE = """
runs_dir = "{directory}/runs"
[task]
kind = "fake"
[policy]
path = "fake"
[searchers]
num_searchers = 1
engine = "fake"
engine_options = {{ step_seconds = 0.002 }}
num_completions = 4
max_prompt_tokens = 32
max_new_tokens = 8
ring_capacity_bytes = 65_536
[trainer]
kind = "fake"
max_steps = 8
prompts_per_step = 4
completions_per_prompt = 4
options = {{ step_seconds = 0.2, faults = [{fault}] }}
[replay]
initial_trajectories = 16
[logging]
tensorboard = false
"""
# The training waits for a file that the test makes when it has seen enough.
HELD = '{{ kind = "hang", where = "update", after = 4, until_file = "{directory}/go_on" }}'
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
# Control sequences: CSI, OSC and single characters.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[@-_]")


def on_terminal(
    argv: list[str], *, columns: int, lines: int, bound_s: float, look: Callable[[bytes], None]
) -> tuple[int, str]:
    """Exit code and all that came to a terminal of this size. `look` sees all that has come so far."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    chunks: list[bytes] = []
    until_s = time.monotonic() + bound_s
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < until_s, b"".join(chunks).decode(errors="replace")[-2000:]
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    chunks.append(os.read(ours, 65_536))
                except OSError:  # EIO: nobody holds the other end any more
                    break
                look(b"".join(chunks))
        return process.wait(timeout=60), b"".join(chunks).decode()
    finally:
        process.kill()
        process.wait(timeout=60)
        os.close(ours)


def run_on_terminal(
    directory: Path, *, columns: int, lines: int, fault: str = "", look: Callable[[bytes], None] = lambda output: None
) -> str:
    recipe = directory / "fake.toml"
    recipe.write_text(RECIPE.format(directory=directory, fault=fault))
    argv = [sys.executable, "-m", "tbactl.cli", "run", str(recipe)]
    exit_code, output = on_terminal(argv, columns=columns, lines=lines, bound_s=200, look=look)
    assert exit_code == 0 and "Traceback" not in output, output[-2000:]
    return output


def test_dashboard_stays_within_the_terminal(tmp_path: Path):
    def look(output: bytes) -> None:
        if output.count(b"searchers") > 4:
            (tmp_path / "go_on").touch()

    fault = HELD.format(directory=tmp_path)
    output = run_on_terminal(tmp_path, columns=110, lines=40, fault=fault, look=look)
    drawn = output[output.index(HIDE_CURSOR) : output.rindex(SHOW_CURSOR)]
    assert max(cell_len(_CONTROL.sub("", line)) for line in re.split(r"[\r\n]+", drawn)) <= 110
    assert drawn.count("searchers") > 4, "it is drawn again and again"


def test_terminal_of_20_columns_gets_lines_in_place_of_a_dashboard(tmp_path: Path):
    output = run_on_terminal(tmp_path, columns=20, lines=5)
    assert HIDE_CURSOR not in output
    assert [f"step={step}/8 " in output for step in range(1, 9)] == [True] * 8


def test_terminal_that_is_stopped_does_not_stop_the_run(tmp_path: Path):
    recipe = tmp_path / "fake.toml"
    recipe.write_text(RECIPE.format(directory=tmp_path, fault=HELD.format(directory=tmp_path)))
    with on_own_terminal(["run", str(recipe)]) as (process, terminal):
        read_until(terminal, lambda output: b"searchers" in output)
        terminal.write(b"\x13")  # Ctrl-S
        time.sleep(2.0)
        (tmp_path / "go_on").touch()
        assert process.wait(timeout=200) == 0
    assert ended(tmp_path)["outcome"] == "finished"


@pytest.mark.fault("I-61")
@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["dashboard", "lines"])
def test_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path, options: list[str]):
    recipe = tmp_path / "fake.toml"
    recipe.write_text(RECIPE.format(directory=tmp_path, fault="").replace("max_steps = 8", "max_steps = 100_000"))
    metrics = tmp_path / "runs" / "latest" / "metrics.jsonl"
    with on_own_terminal(["run", str(recipe), *options]) as (process, terminal):
        read_until(terminal, lambda output: b"step" in output and metrics.exists() and metrics.read_bytes())
        terminal.close()
        assert process.wait(timeout=200) == 129
    record = ended(tmp_path)
    assert (record["outcome"], record["exit_code"]) == ("terminated", 129)
    assert record["steps"] > 0 and record["completions"] > 0


def ended(directory: Path) -> dict[str, Any]:
    """The record of a run that has written all it has to."""
    root = directory / "runs" / "latest"
    assert json.loads((root / "summary.json").read_text()) and json.loads((root / "page.json").read_text())
    return json.loads((root / "run.json").read_text())


def read_until(terminal: FileIO, condition: Callable[[bytes], object]) -> None:
    """Read until all that has come so far is enough."""
    output, until_s = b"", time.monotonic() + 200
    while not condition(output):
        assert time.monotonic() < until_s, output[-2000:].decode(errors="replace")
        if select.select([terminal], [], [], 0.1)[0]:
            output += terminal.read(65_536) or b""


@contextmanager
def on_own_terminal(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], FileIO]]:
    """`tbactl` in a session that a terminal controls, as a shell on it would start it, and the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    starter = "import fcntl, sys, termios\nfrom tbactl.cli.__main__ import main\n"
    starter += "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", starter, *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**environment, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    try:
        with FileIO(ours, "r+") as terminal:
            yield process, terminal
    finally:
        process.kill()
        process.wait(timeout=60)

"""The live dashboard on a real terminal, also one that is far too small."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

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

"""Children of `tbactl eval` and `tbactl sft`, with small scripts in their place."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbactl.cli.child import run_child
from tbactl.errors import CheckpointError, ChildFailedError, ConfigError, TaskError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes an importable module and returns its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))

    def write(text):
        (tmp_path / "child_script.py").write_text(text)
        return "child_script"

    return write


def test_run_child_returns_standard_output_and_logs_standard_error(module, tmp_path):
    name = module("import sys; print('out', sys.argv[1]); print('err', file=sys.stderr)")
    log = tmp_path / "logs" / "child.log"
    assert run_child(name, ["x"], log=log) == "out x\n"
    assert log.read_text() == "err\n"


@pytest.mark.parametrize(("exit_code", "kind"), [(4, TaskError), (7, CheckpointError), (1, ChildFailedError)])
def test_run_child_that_fails_raises_the_error_of_its_exit_code_with_its_last_lines(module, tmp_path, exit_code, kind):
    name = module(f"import sys; print('the \\x1b[31mreason', file=sys.stderr); sys.exit({exit_code})")
    with pytest.raises(kind, match=r"the \[31mreason"):
        run_child(name, [], log=tmp_path / "log")


def test_run_child_that_fails_gives_its_own_message_whatever_the_locale(module, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = module("import sys; print('the file \\u00e9\\udcff'); sys.exit(4)")
    with pytest.raises(TaskError, match=r"^the file \u00e9\\udcff$"):
        run_child(name, [], log=tmp_path / "log")


def test_run_child_that_is_killed_names_the_signal(module, tmp_path):
    name = module("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ChildFailedError, match="killed by SIGKILL"):
        run_child(name, [], log=tmp_path / "log")


def test_interrupt_ends_the_child_and_what_it_started(module, tmp_path):
    pids = tmp_path / "pids"
    name = module(
        "import os, subprocess, sys, time\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '.tmp', 'w').write(f'{{os.getpid()}} {{grandchild.pid}}')\n"
        f"os.rename({str(pids)!r} + '.tmp', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            # A test run in the background of a shell inherits SIGINT ignored.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from pathlib import Path; from tbactl.cli.child import run_child; "
            f"run_child({name!r}, [], log=Path({str(tmp_path / 'log')!r}))",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(pids.exists)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=120) != 0
    finally:
        parent.kill()
        parent.wait()
    # The grandchild was killed, and is gone when it next gets a core.
    wait_until(lambda: not any(map(is_running, map(int, pids.read_text().split()))))


def wait_until(condition, *, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_run_child_makes_its_temporary_files_in_the_scratch_directory(module, tmp_path):
    name = module("import tempfile; print(tempfile.gettempdir())")
    assert run_child(name, [], log=None, scratch=tmp_path) == f"{tmp_path}\n"


def test_run_child_with_a_log_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        run_child("x", [], log=Path("/proc/x/log"))

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tbactl.clock import SystemClock
from tbactl.supervision.identity import is_alive, is_stopped, processes_with, start_ticks
from tbactl.supervision.process import TAIL_LINES, ChildProcess, ProcessSpec, log_tail


def start(tmp_path: Path, code: str, **environment: str) -> ChildProcess:
    spec = ProcessSpec(
        role="searcher",
        index=0,
        argv=(sys.executable, "-c", code),
        environment={**os.environ, **environment},
        log_path=tmp_path / "searcher-0.log",
    )
    return ChildProcess(spec, clock=SystemClock())


def wait_for(condition, *, timeout_s: float = 120.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("pass", 0, "exit code 0"),
        ("raise SystemExit(3)", 3, "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by SIGKILL"),
    ],
)
def test_exit_is_seen_reaped_and_described(tmp_path: Path, code: str, exit_code: int, words: str):
    child = start(tmp_path, code)
    wait_for(lambda: child.poll() is not None)
    assert child.exit_code == exit_code and child.describe_exit() == words
    assert start_ticks(child.pid) is None  # not even a zombie
    child.kill()  # does nothing
    assert child.exit_code == exit_code


def test_what_a_child_started_ends_with_it(tmp_path: Path):
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    child = start(tmp_path, code, TBACTL_TEST_MARK=str(tmp_path))
    wait_for(lambda: child.poll() is not None)
    wait_for(lambda: not list(processes_with("TBACTL_TEST_MARK", str(tmp_path))))


def test_kill_ends_a_child_that_ignores_sigterm(tmp_path: Path):
    child = start(
        tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    wait_for(child.tail)
    child.signal_group(signal.SIGTERM)
    time.sleep(0.1)
    assert child.poll() is None
    child.kill()
    assert child.exit_code == -signal.SIGKILL


def test_tail_is_of_this_life_and_safe_for_a_terminal(tmp_path: Path):
    first = start(tmp_path, "print('first life')")
    wait_for(lambda: first.poll() is not None)
    code = (
        "print('\\x1b[31mred\\x1b[0m \\u202eright to left'); print('10%\\r50%\\r100%'); [print(i) for i in range(50)]"
    )
    second = start(tmp_path, code, PYTHONIOENCODING="utf-8")
    wait_for(lambda: second.poll() is not None)
    assert second.tail() == [str(i) for i in range(30, 50)]
    lines = log_tail(tmp_path / "searcher-0.log")
    assert len(lines) == TAIL_LINES
    third = start(tmp_path, code.partition("; [")[0], PYTHONIOENCODING="utf-8")
    wait_for(lambda: third.poll() is not None)
    assert third.tail() == ["[31mred[0m right to left", "100%"]


def test_tail_of_a_missing_log_is_empty(tmp_path: Path):
    assert log_tail(tmp_path / "none.log") == []


def test_start_time_tells_a_process_from_a_later_one_with_its_pid():
    ticks = start_ticks(os.getpid())
    assert ticks is not None and is_alive(os.getpid(), started=ticks)
    assert not is_alive(os.getpid(), started=ticks + 1)
    assert start_ticks(2**22 + 1) is None


def test_stopped_process_is_told_from_one_that_sleeps(tmp_path: Path):
    child = start(tmp_path, "import time; time.sleep(60)")
    try:
        assert not is_stopped(child.pid)
        child.signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(child.pid))
        child.signal(signal.SIGCONT)
        wait_for(lambda: not is_stopped(child.pid))
    finally:
        child.kill()
    assert not is_stopped(child.pid)

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tbactl.ipc.child import EXIT_ORPHANED, Pulse, bind_to_cores
from tbactl.ipc.control_page import ControlPage, ProcessState
from tbactl.supervision.identity import start_ticks


@pytest.fixture
def page(tmp_path: Path) -> ControlPage:
    return ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)


def wait_for(condition, *, timeout_s: float = 120.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def test_pulse_beats_and_reports_states_and_progress(page: ControlPage):
    slot = page.searcher(0)
    pulse = Pulse(slot, supervisor=None)
    pulse.start()
    try:
        assert slot.get("pid") == os.getpid()
        first = slot.get("heartbeat_ns")
        wait_for(lambda: slot.get("heartbeat_ns") > first)
        pulse.enter(ProcessState.RUNNING)
        pulse.progress()
        assert slot.get("state") == ProcessState.RUNNING and slot.get("progress_count") == 2
        assert slot.get("progress_ns") <= time.monotonic_ns()
    finally:
        pulse.stop()
    assert not pulse._thread.is_alive()
    last = slot.get("heartbeat_ns")
    time.sleep(0.4)
    assert slot.get("heartbeat_ns") == last


CHILD = """
import sys, time
from pathlib import Path
from tbactl.ipc.child import Pulse, bind_to_cores, die_with_parent
from tbactl.ipc.control_page import ControlPage, ProcessState
die_with_parent()
page = ControlPage.open(Path(sys.argv[1]))
pulse = Pulse(page.searcher(0), supervisor=page.supervisor, supervisor_timeout_s=float(sys.argv[2]))
pulse.start()
def deep_inside():
    pulse.enter(ProcessState.RUNNING)
    time.sleep(600)
deep_inside()
"""


def start_child(page: ControlPage, *, timeout_s: float, stderr: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen:
    page.supervisor.set(heartbeat_ns=time.monotonic_ns())
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(page.path), str(timeout_s)], stderr=stderr, start_new_session=True
    )
    wait_for(lambda: page.searcher(0).get("state") == ProcessState.RUNNING)
    return child


def test_child_leaves_when_the_supervisors_heartbeat_stops(page: ControlPage):
    child = start_child(page, timeout_s=60.0)
    page.supervisor.set(heartbeat_ns=time.monotonic_ns() - int(61e9))
    _, errors = child.communicate(timeout=120)
    assert child.returncode == EXIT_ORPHANED and b"heartbeat has stopped" in errors


@pytest.mark.fault("I-61")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_child_leaves_when_the_supervisors_heartbeat_stops_although_its_log_is_full(page: ControlPage):
    with Path("/dev/full").open("wb", buffering=0) as log:
        child = start_child(page, timeout_s=60.0, stderr=log)
    try:
        page.supervisor.set(heartbeat_ns=time.monotonic_ns() - int(61e9))
        assert child.wait(timeout=60) == EXIT_ORPHANED
    finally:
        child.kill()
        child.wait(timeout=60)


def test_child_prints_its_stacks_on_sigusr1_and_lives_on(page: ControlPage):
    child = start_child(page, timeout_s=600.0)
    child.send_signal(signal.SIGUSR1)
    errors = read_until(b"in <module>", child=child)  # the last line of its main thread
    beat = page.searcher(0).get("heartbeat_ns")
    wait_for(lambda: page.searcher(0).get("heartbeat_ns") > beat)
    assert child.poll() is None
    child.kill()
    child.communicate(timeout=60)
    assert b"deep_inside" in errors


def read_until(word: bytes, *, child: subprocess.Popen, timeout_s: float = 120.0) -> bytes:
    """What a child that lives has written to stderr when the word is there."""
    assert child.stderr is not None
    text, deadline = b"", time.monotonic() + timeout_s
    while word not in text:
        assert child.poll() is None and time.monotonic() < deadline, text
        if select.select([child.stderr], [], [], 0.1)[0]:
            text += os.read(child.stderr.fileno(), 65_536)
    return text


@pytest.mark.fault("I-61")
def test_child_dies_with_its_parent(page: ControlPage, tmp_path: Path):
    page.supervisor.set(heartbeat_ns=time.monotonic_ns())
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import subprocess as s, sys; s.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=1).wait()",
            CHILD, str(page.path), "600",
        ]
    )  # fmt: skip
    wait_for(lambda: page.searcher(0).get("state") == ProcessState.RUNNING)
    pid = page.searcher(0).get("pid")
    parent.kill()
    parent.wait(timeout=60)
    wait_for(lambda: start_ticks(pid) is None)


def test_binding_restricts_the_process_and_no_core_means_no_restriction():
    before = os.sched_getaffinity(0)
    try:
        bind_to_cores(())
        assert os.sched_getaffinity(0) == before
        bind_to_cores((min(before),))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


LEFT_BEHIND = """
import sys, threading, time
from tbactl.ipc.child import run_and_leave
threading.Thread(target=time.sleep, args=(600,)).start()
def main():
    if sys.argv[1] == "raise":
        raise ValueError("no luck")
    return int(sys.argv[1])
run_and_leave(main)
"""


@pytest.mark.parametrize(("argument", "exit_code", "message"), [("raise", 1, "ValueError: no luck"), ("4", 4, "")])
def test_process_leaves_although_a_thread_is_left_behind(argument: str, exit_code: int, message: str):
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND, argument], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == exit_code and message in done.stderr

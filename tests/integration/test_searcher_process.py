from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.ipc.codec import decode
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.ipc.ring import RingReader, create_ring
from tbactl.types import TrajectoryGroup


def start(root: Path, **run) -> tuple[subprocess.Popen[str], ControlPage]:
    config = ProcessConfig(
        role="searcher",
        index=0,
        run=RunConfig.model_validate(
            {
                "name": "test",
                "task": {"kind": "fake"},
                "policy": {"path": "unused"},
                "searchers": {"engine": "fake", "num_completions": 3, "max_new_tokens": 8},
            }
            | run
        ),
        run_directory=root,
        shm_directory=root,
        policy_directory=root / "policy",
        cores=(min(os.sched_getaffinity(0)),),
    )
    page = ControlPage.create(config.shm.control, num_trainer_ranks=1, num_searchers=1)
    create_ring(config.shm.ring(0), capacity_bytes=2**20)
    page.supervisor.set(run_state=RunState.RUNNING, heartbeat_ns=time.monotonic_ns() + 10**12)
    path = root / "searcher-0.json"
    path.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "tbactl.searcher", "--config", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()), page


def wait_until(condition, *, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.02)


def test_searcher_process_runs_drains_and_ends(tmp_path):
    process, page = start(tmp_path)
    slot = page.searcher(0)
    try:
        wait_until(lambda: slot.get("num_groups_written") >= 5, process=process)
        assert slot.get("state") == ProcessState.RUNNING and slot.get("pid") == process.pid
        page.supervisor.set(run_state=RunState.DRAINING)
        wait_until(lambda: slot.get("state") == ProcessState.DRAINING, process=process)
        page.supervisor.set(run_state=RunState.STOPPING)
        _, log = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert slot.get("state") == ProcessState.STOPPED
    assert "drained" in log and "Traceback" not in log
    reader = RingReader.open(tmp_path / "ring-0")
    payload = reader.try_read()
    assert payload is not None and isinstance(decode(payload), TrajectoryGroup)
    reader.close()


@pytest.mark.parametrize(
    ("run", "exit_code", "message"),
    [
        ({"task": {"kind": "fake", "options": {"unheard_of": True}}}, 3, "unheard_of"),
        ({"searchers": {"engine": "fake", "engine_options": {"nonsense": 1}}}, 3, "engine_options.nonsense"),
        ({"searchers": {"engine": "fake", "num_completions": 2, "engine_options": {"fail_every": 1}}}, 5, "usable"),
    ],
)
def test_searcher_process_reports_its_failure_by_exit_code(tmp_path, run, exit_code, message):
    process, page = start(tmp_path, **run)
    _, log = process.communicate(timeout=200)
    assert process.returncode == exit_code, log
    assert message in log
    assert page.searcher(0).get("state") == ProcessState.FAILED

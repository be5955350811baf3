"""The trainer as a process, and how it goes on from checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tbactl.checkpoints.store import usable_checkpoint
from tbactl.config.layout import CheckpointLayout
from tbactl.errors import CheckpointError
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.supervision.run_directory import latest_checkpoint
from tests.support.scripted_run import ScriptedRun, trainer_state
from tests.support.trainer_groups import make_config


def run_main(path):
    return subprocess.run(
        [sys.executable, "-m", "tbactl.trainer", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_main_unreadable_configuration_is_exit_code_3(tmp_path):
    (tmp_path / "c.json").write_text("{}")
    outcome = run_main(tmp_path / "c.json")
    assert outcome.returncode == 3
    assert "trainer: cannot use" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_main_damaged_checkpoint_is_exit_code_7_and_state_failed(tmp_path):
    (tmp_path / "checkpoints" / "step_000001").mkdir(parents=True)
    config = make_config(tmp_path, trainer={"kind": "fake"}, policy={"path": "none"}).model_copy(
        update={"resume_checkpoint": tmp_path / "checkpoints" / "step_000001"}
    )
    config.shm.root.mkdir()
    page = ControlPage.create(config.shm.control, num_trainer_ranks=1, num_searchers=1)
    page.supervisor.set(run_state=RunState.RUNNING, heartbeat_ns=2**62)
    (tmp_path / "c.json").write_text(config.model_dump_json())
    outcome = run_main(tmp_path / "c.json")
    assert outcome.returncode == 7, outcome.stderr
    assert "step_000001 is not a complete checkpoint" in outcome.stderr
    assert page.trainer().get("state") == ProcessState.FAILED
    assert page.trainer().get("pid") > 0


def test_resume_from_a_checkpoint_of_a_run_with_other_settings_is_refused_and_names_them(tmp_path):
    first = ScriptedRun(tmp_path / "first")
    first.run()
    second = ScriptedRun(
        tmp_path / "second", resume=first.checkpoint(2), searchers={"num_searchers": 3}, policy={"path": "another"}
    )
    with pytest.raises(CheckpointError, match="written by a run with other settings") as caught:
        second.run()
    assert 'policy.path was "none", is "another"; searchers.num_searchers was 2, is 3' in str(caught.value)


@pytest.mark.fault("I-59")
def test_resume_damaged_newest_checkpoint_falls_back_and_forgets_it(tmp_path, caplog):
    """The supervisor falls back, and the trainer goes on from what it was given."""
    first = ScriptedRun(tmp_path / "first")
    first.run()
    CheckpointLayout(first.checkpoint(6)).trainer_state.write_text("damaged")
    second = ScriptedRun(tmp_path / "second")
    chosen = usable_checkpoint(latest_checkpoint(first.config.layout))
    resumed = second.config.model_copy(
        update={"resume_checkpoint": chosen, "run_directory": first.config.run_directory}
    )
    second.config = resumed
    second.run()

    assert "step_000004 is used instead" in caplog.text
    assert second.word("policy_version") == 6
    assert trainer_state(second.checkpoint(6))["policy_version"] == 6


def test_resume_never_goes_on_from_another_checkpoint_than_the_searchers(tmp_path):
    first = ScriptedRun(tmp_path / "first")
    first.run()
    second = ScriptedRun(tmp_path / "second", resume=first.checkpoint(6))
    CheckpointLayout(first.checkpoint(6)).trainer_state.write_text("damaged")
    with pytest.raises(CheckpointError, match="step_000006"):
        second.run()

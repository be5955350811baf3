"""Faults on real runs (tbactl/chaos). `make chaos` runs two hundred of them."""

import json
import threading

import pytest

from tbactl.chaos.case import Case
from tbactl.chaos.faults import Fault
from tbactl.cli.main import main
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)
@pytest.mark.fault("I-01", "I-16", "I-61", "I-63", "I-67")
def test_dozen_faults_end_as_they_must(tmp_path, capsys):
    kinds = "kill,raise,nan-reward,short-reward,oversize-record,torn-record,corrupt-record,failed-load,wrong-weights"
    arguments = ["--seed", "1", "--faults", "12", "--kinds", kinds, "--output", str(tmp_path / "out"), "--json"]
    arguments += ["--bound", "240"]
    exit_code = main(["chaos", *arguments])
    captured = capsys.readouterr()
    assert exit_code == 0, captured.err
    numbers = json.loads(captured.out)["summary"]
    assert numbers["faults"] == 12 and numbers["groups_acknowledged"] > 0
    assert numbers["hangs"] == numbers["orphans"] == numbers["segments_left"] == numbers["groups_lost"] == 0


def test_run_that_exceeds_its_bound_is_a_hang_and_nothing_of_it_is_left_but_its_directory(tmp_path):
    (tmp_path / "shm").mkdir()
    # Its heartbeat is not missed for long, so the run has come far on any machine, and to an end on none.
    fault = Fault(number=1, kind="stop", phase="running", target="trainer-0", at_step=3, seed=3)
    case = Case(
        fault, directory=tmp_path, shm_root=tmp_path / "shm", bound_s=8.0, may_mount=False,
        cancelled=threading.Event(), heartbeat_s=600.0,
    )  # fmt: skip
    verdict = case.run()
    assert verdict.is_hang and not verdict.is_right
    assert (tmp_path / fault.name / "output.txt").is_file()
    assert list((tmp_path / "shm").iterdir()) == []
    [root] = [path for path in (tmp_path / fault.name / "runs").iterdir() if not path.is_symlink()]
    shm = json.loads((root / "run.json").read_bytes())["shm_directory"]
    assert not list(processes_with(RUN_VARIABLE, shm))


@pytest.mark.fault("I-01")
def test_process_that_is_stopped_while_the_run_drains_is_named_before_it_is_ended(tmp_path):
    (tmp_path / "shm").mkdir()
    fault = Fault(number=1, kind="stop", phase="draining", target="trainer-0", at_step=4, seed=3)
    case = Case(
        fault, directory=tmp_path, shm_root=tmp_path / "shm", bound_s=120.0, may_mount=False,
        cancelled=threading.Event(), keeps=True, heartbeat_s=3.0,
    )  # fmt: skip
    verdict = case.run()
    assert verdict.is_right and verdict.is_resumed, verdict.problems
    [root] = [path for path in (tmp_path / fault.name / "runs").iterdir() if not path.is_symlink()]
    events = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    told = [event["kind"] for event in events if event["process"] == "trainer-0" and event["kind"] == "child_stalled"]
    assert told == ["child_stalled"]
    order = [event["kind"] if event["kind"] == "child_stalled" else event["details"].get("state") for event in events]
    assert order.index("DRAINING") < order.index("child_stalled") < order.index("STOPPING")

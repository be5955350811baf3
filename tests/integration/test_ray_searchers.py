"""Searchers on two nodes of a Ray cluster on this machine, with fake engine and learner."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.resume_digest import digests
from tbactl.config.layout import SHM_ROOT
from tbactl.ipc.control_page import ProcessState
from tbactl.supervision.identity import processes_with
from tbactl.supervision.placement import RUN_VARIABLE
from tests.support.bridges import SEARCHERS, Desk
from tests.support.supervised_run import FAKE_SEARCHERS, SupervisedRun, supervised_run

SCRIPT = Path(__file__).parents[1] / "support" / "ray_nodes.py"
ADDRESS = re.compile(r"address (\S+)")
PLACED = re.compile(r"placed on node (\w+)")

SECTIONS: dict[str, Any] = {
    "policy": {"path": "fake"},
    "searchers": FAKE_SEARCHERS,
    "trainer": {
        "kind": "fake", "max_steps": 12, "prompts_per_step": 4, "completions_per_prompt": 4,
        "options": {"step_seconds": 0.3},
    },
    "replay": {"initial_trajectories": 16, "on_policy_fraction": 1.0},
    "objective": {"beta": 0.01},
    "sync": {"period": 1},
    "checkpoint": {"period": 4},
    "evaluation": {"num_prompts": 20, "period": 4},
    "logging": {"tensorboard": False},
    "supervision": {"restart_backoff_s": 0.1},
}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="the package ray is not installed"),
]


class Nodes:
    """The cluster's process."""

    def __init__(self, temporary: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), temporary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.address = self._read(ADDRESS)[1]
        except BaseException:
            self.close()
            raise

    def kill(self, node: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(node + "\n")
        self._process.stdin.flush()
        self._read(re.compile("removed"))

    def close(self) -> None:
        try:
            self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:  # Ray's processes notice that their parent has gone
            self._process.kill()
            self._process.wait(timeout=60)

    def _read(self, pattern: re.Pattern[str]) -> re.Match[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := pattern.search(line):
                return match
        raise AssertionError(f"the cluster ended with {self._process.wait()}")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray leaves a token in the home directory
        temporary = tempfile.mkdtemp(prefix="ray-")  # short: sockets lie below it
        try:
            nodes = start(temporary)
            yield nodes
            nodes.close()
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def start(temporary: str) -> Nodes:
    """Ray gives its servers 30 s to come up, which is not always enough on a busy machine."""
    for _ in range(2):
        try:
            return Nodes(temporary)
        except AssertionError as error:
            print(error)
    return Nodes(temporary)


def held_by(file: Path) -> dict[str, Any]:
    """A trainer that waits for a file after five steps: the run is not over before it was disturbed."""
    fault = {"kind": "hang", "where": "update", "after": 5, "until_file": str(file)}
    return {"options": {"step_seconds": 0.3, "faults": [fault]}}


def run_of(tmp_path: Path, *, nodes: Nodes | None, **changes: Any):
    tmp_path.mkdir(exist_ok=True)
    sections = {
        name: {**section, **changes.get(name, {})} if isinstance(section, dict) else section
        for name, section in {**changes, **SECTIONS}.items()
    }
    if nodes is not None:
        sections["searchers"] |= {"launcher": "ray", "ray_address": nodes.address}
    return supervised_run(tmp_path, stand_ins=False, **sections)


def places_of(run: SupervisedRun, searcher: int) -> list[str]:
    return PLACED.findall((run.layout.logs / "latest" / f"searcher-{searcher}.log").read_text())


def segments_of(run: SupervisedRun) -> list[Path]:
    """Shared memory of the run's searchers; all nodes are this machine."""
    return list(SHM_ROOT.glob(f"tbactl-{os.getuid()}-{run.layout.root.name}-*"))


def wait_until_training(run: SupervisedRun) -> None:
    run.wait_for_event("run_state", state="RUNNING")
    run.wait_for(lambda: run.page().trainer().get("policy_version") > 2)


def test_run_whose_node_is_killed_ends_with_the_bits_of_an_undisturbed_run_on_one_machine(nodes: Nodes, tmp_path: Path):
    go_on = tmp_path / "go_on"
    go_on.touch()
    with run_of(tmp_path / "here", nodes=None, mode="sync", trainer=held_by(go_on)) as here:
        assert here.wait() == 0, here.text
    go_on.unlink()
    with run_of(tmp_path / "cluster", nodes=nodes, mode="sync", trainer=held_by(go_on)) as run:
        wait_until_training(run)
        places = [places_of(run, searcher) for searcher in (0, 1)]
        assert places[0] != places[1]
        nodes.kill(places[0][0])
        died = run.wait_for_event("child_died")
        go_on.touch()
        assert died["process"] == "searcher-0" and died["details"]["how"] == "exit code 5"
        assert run.wait(timeout_s=180) == 0, run.text
        run.assert_nothing_left()
        assert places_of(run, 0) == [*places[0], *places[1]]
        # This machine plays all nodes: the next searcher has removed what the killed node's had left.
        assert segments_of(run) == []
        # More than once where Ray tries the killed node again before it has given it up.
        assert {event["process"] for event in run.events("child_died")} == {"searcher-0"}
        assert run.events("alarm") == []
        versions = [event["details"]["policy_version"] for event in run.events("evaluation")]
        assert versions == [0, 4, 8, 12]
        assert digests(run.layout.root, step=12) == digests(here.layout.root, step=12)


def test_killed_supervisor_leaves_no_process_on_any_node(nodes: Nodes, tmp_path: Path):
    with run_of(tmp_path, nodes=nodes, trainer={"max_steps": 10_000}) as run:
        wait_until_training(run)
        segments = segments_of(run)
        assert len(segments) == 2
        assert all(list(processes_with(RUN_VARIABLE, str(segment))) for segment in segments)
        run.signal(signal.SIGKILL)
        run.wait()
        run.wait_for(lambda: not any(list(processes_with(RUN_VARIABLE, str(segment))) for segment in segments))
        for segment in segments_of(run):  # what the next searcher on that node would remove
            shutil.rmtree(segment)


def bridge(tmp_path: Path, *, start_timeout_s: float, **searchers: Any) -> subprocess.CompletedProcess[str]:
    """A bridge without a supervisor, to its end."""
    desk = Desk(tmp_path, searchers=SEARCHERS | searchers, supervision={"start_timeout_s": start_timeout_s})
    desk.slot.set(attempt=1)
    desk.ring.close()
    path = tmp_path / "searcher-0.json"
    path.write_text(desk.config.model_dump_json())
    command = [sys.executable, "-m", "tbactl.cluster", "--config", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert desk.slot.get("state") == ProcessState.FAILED
    return ended


def test_searcher_that_fits_on_no_node_is_told_what_there_is(nodes: Nodes, tmp_path: Path):
    wanted = {"CPU": 1.0, "accelerator": 1.0}
    ended = bridge(tmp_path, start_timeout_s=5.0, ray_address=nodes.address, ray_resources=wanted)
    assert ended.returncode == 5
    assert f"no node of the Ray cluster has had room for searchers.ray_resources = {wanted}" in ended.stderr
    assert re.search(r"there is \{'CPU': \d", ended.stderr)


def test_cluster_that_is_not_there_is_the_users_mistake(tmp_path: Path):
    ended = bridge(tmp_path, start_timeout_s=5.0, ray_address="127.0.0.1:1")
    assert ended.returncode == 3
    assert "searchers.ray_address = '127.0.0.1:1'" in ended.stderr and "ray start --head" in ended.stderr

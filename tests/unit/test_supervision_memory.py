"""Shared memory: made private, found when stale, never taken from the living."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbactl.config.derived import shared_memory_bytes
from tbactl.config.sections import RunConfig
from tbactl.errors import CapacityError
from tbactl.supervision import reclaim as reclaim_module
from tbactl.supervision import shared_memory
from tbactl.supervision.identity import start_ticks
from tbactl.supervision.reclaim import UNOWNED_GRACE_S, end_processes_of, reclaim, stale_segments
from tbactl.supervision.shared_memory import SharedMemory, check_free_space, shared_memory_layout


@pytest.fixture
def config() -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "t", "task": {"kind": "fake"}, "policy": {"path": "p"},
            "searchers": {"num_searchers": 2, "ring_capacity_bytes": 4096},
        }
    )  # fmt: skip


def make(config: RunConfig, root: Path) -> SharedMemory:
    run_directory = root / "runs" / "t-1"
    return SharedMemory(shared_memory_layout(run_directory, root=root), config=config, run_directory=run_directory)


def test_directory_holds_owner_page_rings_and_weights_for_the_user_alone(config: RunConfig, tmp_path: Path):
    memory = make(config, tmp_path)
    root = memory.layout.root
    assert {p.name for p in root.iterdir()} == {"owner.json", "control", "ring-0", "ring-1", "weights"}
    assert root.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in root.iterdir())
    owner = json.loads(memory.layout.owner.read_bytes())
    assert owner["pid"] == os.getpid() and owner["pid_start_ticks"] == start_ticks(os.getpid())
    memory.remove()
    memory.remove()
    assert not root.exists()


@pytest.mark.fault("I-63")
def test_live_directory_is_not_stale(config: RunConfig, tmp_path: Path):
    memory = make(config, tmp_path)
    assert stale_segments(tmp_path) == [] and reclaim(tmp_path) == []
    assert memory.layout.root.is_dir()
    memory.remove()


@pytest.mark.fault("I-63")
def test_directory_of_a_dead_owner_is_reclaimed(config: RunConfig, tmp_path: Path):
    code = (
        "import os, sys; from pathlib import Path; from tbactl.config.sections import RunConfig; "
        "from tests.unit.test_supervision_memory import make; "
        "make(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, config.model_dump_json(), str(tmp_path)], check=False, timeout=240)
    (stale,) = stale_segments(tmp_path)
    assert stale.run_directory == str(tmp_path / "runs" / "t-1") and stale.size_bytes > 8192
    assert reclaim(tmp_path) == [stale]
    assert not stale.directory.exists() and stale_segments(tmp_path) == []


def test_directory_without_owner_is_left_until_it_is_old(tmp_path: Path):
    directory = tmp_path / f"tbactl-{os.getuid()}-t-1"
    directory.mkdir()
    assert stale_segments(tmp_path) == []
    old_s = time.time() - UNOWNED_GRACE_S - 1
    os.utime(directory, (old_s, old_s))
    assert [stale.directory for stale in stale_segments(tmp_path)] == [directory]


@pytest.mark.fault("I-63")
def test_links_and_other_peoples_directories_are_never_touched(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.mkdir()
    old_s = time.time() - 1000
    for name in (f"tbactl-{os.getuid()}-link", f"tbactl-{os.getuid() + 1}-other", "something"):
        path = tmp_path / name
        path.symlink_to(victim) if "link" in name else path.mkdir()
        os.utime(path, (old_s, old_s), follow_symlinks=False)
    assert reclaim(tmp_path) == []
    assert victim.is_dir()


def test_processes_of_a_dead_run_are_ended(tmp_path: Path):
    environment = {**os.environ, "TBACTL_SHM_DIRECTORY": str(tmp_path / "gone")}
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    try:
        deadline = time.monotonic() + 120
        while not (ended := end_processes_of(tmp_path / "gone")):
            assert time.monotonic() < deadline
        assert ended == [stray.pid]
        assert start_ticks(stray.pid) is None  # seen gone, though it is not reaped yet
        assert stray.wait(timeout=60) == -9
    finally:
        stray.kill()
        stray.wait(timeout=60)


def test_end_of_a_process_is_waited_for_up_to_a_limit_and_that_of_a_stranger_with_its_pid_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            monkeypatch.setattr(reclaim_module, "processes_with", lambda variable, value: iter([process.pid]))
            monkeypatch.setattr(os, "kill", lambda pid, number: None)  # as one that the kernel cannot end
            before_s = time.monotonic()
            assert end_processes_of(tmp_path, limit_s=0.1) == [process.pid]
            assert time.monotonic() - before_s >= 0.1
            monkeypatch.setattr(reclaim_module, "start_ticks", lambda pid: 1)  # that one started with the machine
            monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits for a stranger"))
            assert end_processes_of(tmp_path) == [process.pid]
        finally:
            monkeypatch.undo()
            process.kill()


def test_missing_root_has_nothing_stale(tmp_path: Path):
    assert stale_segments(tmp_path / "none") == []


def test_too_little_shared_memory_is_found_before_anything_starts(config: RunConfig, tmp_path: Path):
    with pytest.raises(CapacityError, match=r"MiB free, but this run needs [\d,]+ MiB"):
        check_free_space(config, policy_bytes=2**60, root=tmp_path)
    check_free_space(config, policy_bytes=1000, root=tmp_path)


def test_need_is_rings_and_three_versions_of_the_policy(config: RunConfig):
    assert shared_memory_bytes(config, policy_bytes=1000) == 2 * 4096 + 3 * 1000


def test_failure_while_making_leaves_no_directory(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, *, capacity_bytes: int) -> None:
        raise CapacityError("full")

    monkeypatch.setattr(shared_memory, "create_ring", refuse)
    with pytest.raises(CapacityError, match="full"):
        make(config, tmp_path)
    assert list(tmp_path.glob("tbactl-*")) == []

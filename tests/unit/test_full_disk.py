"""A run on a full disk ends in its own order, and says what was wrong."""

import errno
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

from tbactl.clock import FakeClock
from tbactl.dashboard.tail import JsonlTail
from tbactl.errors import CapacityError, CheckpointError
from tbactl.supervision.events import EventLog
from tbactl.supervision.supervisor import Ending

FULL = Path("/dev/full")
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def test_events_that_cannot_be_written_are_lost_with_one_warning(capsys: pytest.CaptureFixture[str]):
    with EventLog(FULL, clock=FakeClock()) as events:
        events.record("child_died", process="trainer-0")
        events.record("run_state", state="STOPPING")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1 and "/dev/full cannot be written" in warnings[0]


class ShortOnce(FileIO):
    """Has room for half of the first line only."""

    num_writes = 0

    def write(self, data):
        self.num_writes += 1
        return super().write(data[: len(data) // 2] if self.num_writes == 1 else data)


def test_event_that_fits_only_in_part_spoils_no_later_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=FakeClock()) as events:
        events._file.close()
        events._file = ShortOnce(path, "ab")
        for kind in ("torn", "next", "last"):
            events.record(kind)
    tail = JsonlTail(path)
    assert [event["kind"] for event in tail.read_new()] == ["next", "last"] and tail.num_damaged == 1
    assert "cannot be written: No space left" in capsys.readouterr().err


def test_events_of_a_resume_begin_behind_a_torn_line(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "whole"}\n{"kind": "to')
    for kind in ("second", "third"):
        with EventLog(path, clock=FakeClock()) as events:
            events.record(kind)
    assert [event["kind"] for event in JsonlTail(path).read_new()] == ["whole", "second", "third"]
    assert b"\n\n" not in path.read_bytes()


def test_ending_that_cannot_be_written_is_a_failure_unless_there_was_one_before():
    finished = Ending(outcome="finished", exit_code=0).unwritten(NO_SPACE)
    assert finished.exit_code == CapacityError.exit_code and "Free some disk space" in str(finished.error)
    failed = Ending(outcome="failed", exit_code=7, error=CheckpointError("broken"))
    assert failed.unwritten(NO_SPACE) is failed
    with pytest.raises(PermissionError):
        failed.unwritten(PermissionError(errno.EACCES, "Permission denied"))


@pytest.mark.parametrize(("statement", "exit_code"), [("return 6", 6), ("raise ValueError('x')", 1)])
def test_exit_code_of_a_child_gets_through_although_its_log_is_full(statement: str, exit_code: int):
    code = f"from tbactl.ipc.child import report, run_and_leave\ndef main():\n  report('why')\n  {statement}\n"
    with FULL.open("w") as log:
        result = subprocess.run([sys.executable, "-c", f"{code}run_and_leave(main)"], stdout=log, stderr=log)
    assert result.returncode == exit_code

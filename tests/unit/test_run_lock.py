"""Two supervisors never share a run directory."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tbactl.errors import ConfigError
from tbactl.supervision import run_lock
from tbactl.supervision.run_lock import check_unsupervised, sole_supervisor

HOLDER = """
import sys, time
from pathlib import Path
from tbactl.supervision.run_lock import sole_supervisor
with sole_supervisor(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_second_supervisor_is_refused_and_told_who_holds_the_run(tmp_path: Path):
    with sole_supervisor(tmp_path):
        for attempt in (check_unsupervised, lambda root: sole_supervisor(root).__enter__()):
            with pytest.raises(ConfigError) as caught:
                attempt(tmp_path)
            for words in (str(tmp_path), f"pid {os.getpid()} on ", f"tbactl stop {tmp_path}"):
                assert words in str(caught.value)
    check_unsupervised(tmp_path)
    with sole_supervisor(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == b""


def test_kill_of_the_holder_frees_the_run(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"pid {holder.pid} on "):
            check_unsupervised(tmp_path)
        holder.send_signal(signal.SIGKILL)
    check_unsupervised(tmp_path)
    with sole_supervisor(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"pid {os.getpid()} on ")


def test_look_at_a_run_without_a_lock_file_writes_nothing(tmp_path: Path):
    check_unsupervised(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch, capsys, number: int):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    with sole_supervisor(tmp_path):
        check_unsupervised(tmp_path)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1 and "has no locks" in warnings[0] and str(tmp_path) in warnings[0]


def test_lock_file_that_is_a_link_is_refused_and_its_target_untouched(tmp_path: Path):
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".lock").symlink_to("precious")
    with pytest.raises(ConfigError, match="remove it"), sole_supervisor(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "content"

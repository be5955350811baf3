"""The soak of benchmarks/soak.py in its short form: real processes, and a leak that it must find."""

from pathlib import Path

import pytest

from benchmarks import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLAIN = ["--set", "logging.tensorboard=false"]


def test_soak_of_a_whole_run_finds_nothing_that_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = soak.main([str(tmp_path), "--minutes", "0.25", *PLAIN])
    output = capsys.readouterr()
    assert code == 0, output.out + output.err
    assert (tmp_path / "soak.csv").exists() and "nothing grows" in output.out


def test_soak_finds_memory_that_the_trainer_never_gives_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Ten megabytes a second show in less time than it takes to be sure that nothing grows.
    leak = ["--set", "trainer.options.leak_bytes=2000000"]
    assert soak.main([str(tmp_path), "--minutes", "0.15", *PLAIN, *leak]) == 1
    assert "GROWING: rss trainer-0" in capsys.readouterr().out

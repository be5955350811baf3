import os

import pytest

from tbactl.cli.arguments import find_run
from tbactl.errors import ConfigError


def make_run(directory, name):
    run = directory / name
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    return run


def test_find_run_by_path_and_by_name(tmp_path):
    run = make_run(tmp_path, "a")
    assert find_run(str(run), runs_directory=tmp_path) == run
    assert find_run("a", runs_directory=tmp_path) == run


def test_find_run_latest_follows_the_link(tmp_path):
    make_run(tmp_path, "a")
    os.symlink("a", tmp_path / "latest")
    assert find_run("latest", runs_directory=tmp_path).resolve() == tmp_path / "a"


def test_find_run_latest_without_a_link_is_the_newest(tmp_path):
    make_run(tmp_path, "b")
    make_run(tmp_path, "a")
    os.utime(tmp_path / "b" / "run.json", ns=(1, 1))
    assert find_run("latest", runs_directory=tmp_path).name in ("a", "b")


def test_find_run_of_nothing_names_the_newest_runs(tmp_path):
    make_run(tmp_path, "one")
    with pytest.raises(ConfigError, match="newest runs: one"):
        find_run("two", runs_directory=tmp_path)


def test_find_run_of_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no run"):
        find_run(str(tmp_path), runs_directory=tmp_path)

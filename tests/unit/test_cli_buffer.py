from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pandas
import pytest

from tbactl.checkpoints import saved_buffer
from tbactl.cli.main import main
from tbactl.config.layout import CheckpointLayout
from tests.support.scripted_run import ScriptedRun


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("buffer")
    run = ScriptedRun(root / "runs")
    for searcher in run.searchers:
        searcher._group = with_escapes(searcher._group)
    run.run()
    (run.config.run_directory / "run.json").write_text('{"outcome": "finished"}')
    return run


def with_escapes(make_group):
    def made():
        group = make_group()
        trajectories = tuple(
            replace(t, completion=replace(t.completion, text=f"\x1b[2J[bold]{t.uid}\n second line"))
            for t in group.trajectories
        )
        return replace(group, trajectories=trajectories)

    return made


@pytest.fixture
def directory(finished, tmp_path, monkeypatch):
    """A run directory that a test may spoil, below an empty working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished.config.run_directory, tmp_path / "runs" / "r", symlinks=True)
    return tmp_path / "runs" / "r"


def show(capsys, *arguments):
    assert main(["buffer", "show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["r", "runs/r", "latest", ""])
def test_show_takes_a_name_a_path_or_the_latest(directory, capsys, name):
    assert "step_000006, policy version 6" in show(capsys, *([name] if name else []))


def test_show_json_adds_up(directory, capsys):
    report = json.loads(show(capsys, "r", "--json", "--examples", "2"))
    metrics = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    counts = report["counts"]
    assert report["policy_version"] == 6 and counts["capacity"] == 400
    assert counts["num_trained"] == metrics["trainer/trajectories/total"] == 96
    assert counts["num_held"] == sum(report["versions"].values())
    assert counts["num_held"] == sum(row["num_trajectories"] for row in report["ages"])
    assert counts["num_held"] == sum(row["num_trajectories"] for row in report["rewards"])
    assert report["samples_per_insert"] == counts["num_trained"] / counts["num_received"]
    assert len(report["highest"]) == len(report["lowest"]) == 2
    assert report["highest"][0]["reward"] >= report["lowest"][0]["reward"]
    assert report["highest"][0]["completion"].startswith("\x1b")


def test_show_escapes_what_the_model_wrote(directory, capsys):
    text = show(capsys, "r")
    assert "\x1b" not in text and "[2J[bold]" in text and "second line" in text
    assert "highest reward" in text and "lowest reward" in text
    assert "highest" not in show(capsys, "r", "--examples", "0")


def test_show_takes_a_checkpoint(directory, capsys):
    assert "policy version 2" in show(capsys, str(directory / "checkpoints" / "step_000002"))
    assert "policy version 6" in show(capsys, str(directory / "checkpoints" / "latest"))


def test_show_passes_over_a_damaged_checkpoint(directory, capsys):
    (CheckpointLayout(directory / "checkpoints" / "step_000006").replay / "buffer.json").write_text("{}")
    assert "policy version 4" in show(capsys, "r")


def test_show_does_not_need_the_policy(directory, capsys):
    shutil.rmtree(CheckpointLayout(directory / "checkpoints" / "step_000006").policy)
    assert "policy version 6" in show(capsys, "r")


def test_run_that_replaces_its_checkpoints_meanwhile_is_read_again(directory, capsys, monkeypatch):
    newest = directory / "checkpoints" / "step_000006"
    read = saved_buffer._read
    calls = []

    def replaced_meanwhile(checkpoint):
        calls.append(checkpoint.name)
        if len(calls) == 1:
            for old in (directory / "checkpoints").glob("step_00000[24]"):
                shutil.rmtree(old)
            newest.rename(newest.with_name("step_000008"))
        return read(checkpoint)

    monkeypatch.setattr(saved_buffer, "_read", replaced_meanwhile)
    assert "step_000008" in show(capsys, "r")
    assert calls[-1] == "step_000008"


def test_run_without_a_checkpoint_says_when_there_will_be_one(directory, capsys):
    shutil.rmtree(directory / "checkpoints")
    assert main(["buffer", "show", "r"]) == 7
    assert "it has none yet" in capsys.readouterr().err


def test_all_checkpoints_damaged_names_each(directory, capsys):
    for checkpoint in (directory / "checkpoints").glob("step_*"):
        (CheckpointLayout(checkpoint).replay / "buffer.json").unlink()
    assert main(["buffer", "show", "r", "--json"]) == 7
    document = json.loads(capsys.readouterr().err)
    assert document["problems"][0].count("buffer.json: missing") == 3


def test_unknown_run_is_refused(directory, capsys):
    assert main(["buffer", "show", "nowhere"]) == 3
    assert "there is no run 'nowhere'" in capsys.readouterr().err


def test_export_writes_a_table_and_does_not_replace_it_unasked(directory, capsys, tmp_path):
    out = tmp_path / "b.parquet"
    assert main(["buffer", "export", "r", str(out)]) == 0
    capsys.readouterr()
    frame = pandas.read_parquet(out)
    assert len(frame) == json.loads(show(capsys, "r", "--json"))["counts"]["num_held"]
    assert main(["buffer", "export", "r", str(out)]) == 3
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["buffer", "export", "r", str(out), "--force", "--limit", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_trajectories"] == 5
    assert len(pandas.read_parquet(out)) == 5


def test_export_into_a_directory_that_does_not_exist_is_refused(directory, capsys, tmp_path):
    assert main(["buffer", "export", "r", str(tmp_path / "nowhere" / "b.parquet")]) == 3
    assert "there is no directory" in capsys.readouterr().err

from __future__ import annotations

import pytest

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.checkpoints.store import CheckpointStore
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.errors import CheckpointError, ConfigError


@pytest.fixture
def run(tmp_path):
    layout = RunLayout(tmp_path / "run")
    for step in (5, 10):
        with CheckpointStore(layout, keep_last=9).writing(step=step) as checkpoint:
            checkpoint.policy.mkdir()
            (checkpoint.policy / "config.json").write_text("{}")
    return layout


def resolve(name, *, task="math"):
    with resolved_policy(str(name), task=task) as policy:
        return policy


def test_resolve_run_is_its_newest_checkpoint(run):
    assert resolve(run.root) == CheckpointLayout(run.checkpoint(10)).policy


def test_resolve_run_with_damaged_newest_checkpoint_is_the_one_before(run):
    (CheckpointLayout(run.checkpoint(10)).policy / "config.json").write_text("damaged")
    assert resolve(run.root) == CheckpointLayout(run.checkpoint(5)).policy


def test_resolve_checkpoint_and_its_policy_directory(run):
    layout = CheckpointLayout(run.checkpoint(5))
    assert resolve(run.checkpoint(5)) == layout.policy
    assert resolve(layout.policy) == layout.policy


def test_resolve_latest_link(run):
    assert resolve(run.latest_checkpoint).resolve() == CheckpointLayout(run.checkpoint(10)).policy


def test_resolve_damaged_checkpoint_asked_for_by_name_is_an_error(run):
    (CheckpointLayout(run.checkpoint(5)).policy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        resolve(run.checkpoint(5))


def test_resolve_hub_name_is_passed_on():
    assert str(resolve("organisation/model")) == "organisation/model"


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/nowhere/at/all"])
def test_resolve_path_that_does_not_exist_is_an_error(name):
    with pytest.raises(CheckpointError, match="does not exist"):
        resolve(name)


def test_resolve_directory_without_a_policy_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="holds no policy"):
        resolve(tmp_path)


def test_resolve_task_policy_asks_the_task():
    assert resolve("task:gsm8k-tiny", task="math") == resolve("task:math/gsm8k-tiny", task="fake")
    with pytest.raises(ConfigError, match="'fake' ships no policy"):
        resolve("task:small", task="fake")


def test_resolve_checkpoint_without_export_is_consolidated(run, monkeypatch):
    with CheckpointStore(run, keep_last=9).writing(step=15) as checkpoint:
        checkpoint.learner.mkdir()
        (checkpoint.learner / "learner.json").write_text("{}")
    seen = []
    monkeypatch.setattr(
        "tbactl.checkpoints.consolidate.consolidate",
        lambda learner, output: (seen.append(learner), (output / "config.json").write_text("{}")),
    )
    with resolved_policy(str(run.root), task="math") as policy:
        assert (policy / "config.json").is_file()
    assert not policy.exists(), "the temporary directory is gone"
    resolve(CheckpointLayout(run.checkpoint(15)).learner)
    assert seen == [CheckpointLayout(run.checkpoint(15)).learner] * 2

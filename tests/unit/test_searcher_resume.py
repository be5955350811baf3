from __future__ import annotations

import json
import shutil

import pytest

from tbactl.checkpoints import manifest
from tbactl.checkpoints.manifest import checksum
from tbactl.checkpoints.store import CheckpointStore
from tbactl.checkpoints.trainer_state import TrainerState, write_trainer_state
from tbactl.clock import SystemClock
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import CheckpointError
from tbactl.ipc.control_page import ControlPage
from tbactl.searcher.evaluation import Evaluator
from tbactl.searcher.resume import ResumePoint, resume_point
from tbactl.testing.fake_task import FakeTask


def process(root, *, index=0, num_searchers=2, resume=None) -> ProcessConfig:
    run = {
        "name": "test",
        "task": {"kind": "fake"},
        "policy": {"path": "unused"},
        "searchers": {"engine": "fake", "num_searchers": num_searchers},
        "evaluation": {"num_prompts": 5},
    }
    return ProcessConfig(
        role="searcher",
        index=index,
        run=RunConfig.model_validate(run),
        run_directory=root,
        shm_directory=root,
        policy_directory=root,
        resume_checkpoint=resume,
    )


def checkpoint(root, *, step: int, positions: list[int]):
    layout = process(root).layout
    state = TrainerState(policy_version=step, sampler_rng={}, stream_positions=positions)
    with CheckpointStore(layout, keep_last=5).writing(step=step) as made:
        write_trainer_state(made, state)
    return layout.checkpoint(step)


def test_new_run_begins_at_zero(tmp_path):
    assert resume_point(process(tmp_path)) == ResumePoint()


@pytest.mark.fault("I-52")
def test_each_searcher_goes_on_where_the_checkpoint_says(tmp_path):
    path = checkpoint(tmp_path, step=10, positions=[14, 9])
    points = [resume_point(process(tmp_path, index=i, resume=path)) for i in range(2)]
    assert [(point.step, point.position) for point in points] == [(10, 14), (10, 9)]


def test_checkpoint_with_streams_of_another_number_of_searchers_is_refused(tmp_path):
    path = checkpoint(tmp_path, step=10, positions=[14, 9])
    with pytest.raises(CheckpointError, match="prompt streams of 2 searchers, but this run has 3"):
        resume_point(process(tmp_path, num_searchers=3, resume=path))


def test_damaged_state_is_an_error_and_never_another_checkpoint_than_the_trainers(tmp_path):
    checkpoint(tmp_path, step=10, positions=[4, 5])
    newest = checkpoint(tmp_path, step=20, positions=[14, 15])
    (newest / "trainer_state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step_000020/trainer_state\.json"):
        resume_point(process(tmp_path, resume=newest))


def test_searcher_reads_nothing_but_the_state(tmp_path, monkeypatch):
    layout = process(tmp_path).layout
    with CheckpointStore(layout, keep_last=5).writing(step=10) as made:
        write_trainer_state(made, TrainerState(policy_version=10, sampler_rng={}, stream_positions=[14, 9]))
        made.learner.mkdir()
        (made.learner / "large").write_bytes(b"weights")
    read = []
    monkeypatch.setattr(manifest, "checksum", lambda path: (read.append(path.name), checksum(path))[1])
    assert resume_point(process(tmp_path, resume=layout.checkpoint(10))).position == 14
    assert read == ["trainer_state.json"]


def test_resume_point_survives_the_checkpoint(tmp_path):
    path = checkpoint(tmp_path, step=10, positions=[14, 9])
    before = resume_point(process(tmp_path, resume=path))
    shutil.rmtree(path)
    assert resume_point(process(tmp_path, resume=path)) == before


def test_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError):
        resume_point(process(tmp_path, resume=tmp_path / "checkpoints" / "step_000010"))


@pytest.mark.parametrize(("recorded", "asked", "is_due"), [([0], 10, True), ([0, 10], 10, False), ([0, 20], 20, True)])
def test_resumed_run_evaluates_what_the_checkpoints_policy_was_not_evaluated_for(tmp_path, recorded, asked, is_due):
    config = process(tmp_path)
    config.layout.evaluations.write_text(
        "".join(json.dumps({"policy_version": v, "x": 0}).replace(" ", "") + "\n" for v in recorded)
    )
    page = ControlPage.create(config.shm.control, num_trainer_ranks=1, num_searchers=2)
    page.trainer().set(evaluate_version=asked)
    evaluator = Evaluator(
        config,
        task=FakeTask(),
        engine=None,
        page=page,
        resumed_version=10,
        clock=SystemClock(),  # pyright: ignore
    )
    assert (evaluator.asked_version == asked) is is_due

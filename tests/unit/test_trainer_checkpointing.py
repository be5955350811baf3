"""Checkpoints that are completed beside the training: of one moment, one at a time, and never lost without a word."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy as np
import pytest

from tbactl.checkpoints.manifest import verify
from tbactl.checkpoints.store import CheckpointStore
from tbactl.checkpoints.trainer_state import TrainerState, read_trainer_state
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.config.sections import ReplaySection
from tbactl.errors import CapacityError, CheckpointError, TbactlError
from tbactl.ipc.control_page import TrainerPhase
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import rng_state_to_json
from tbactl.testing.fake_learner import FakeLearner
from tbactl.trainer.checkpointing import Checkpointing, restore_state
from tests.support.scripted_run import SYNC_MODE, ScriptedRun
from tests.support.trainer_groups import make_config


class HeldDisk(CheckpointStore):
    """Completes nothing before it is let go."""

    def __init__(self, layout: RunLayout) -> None:
        super().__init__(layout, keep_last=9)
        self.gate = threading.Event()

    def complete(self, *, step: int) -> None:
        assert self.gate.wait(timeout=120)
        super().complete(step=step)


class Scene:
    def __init__(self, tmp_path, **options):
        self.layout = RunLayout(tmp_path)
        self.disk = HeldDisk(self.layout)
        self.state = TrainerState(
            policy_version=2, sampler_rng=rng_state_to_json(np.random.default_rng(0)), stream_positions=[0]
        )
        self.signs = []
        config = make_config(tmp_path, trainer={"kind": "fake"}, policy={"path": "none"})
        settings = {"asynchronous": True, "timeout_s": 120.0, "note_progress": lambda: self.signs.append(1)} | options
        self.checkpointing = Checkpointing(
            self.disk,
            state=self.state,
            buffer=ReplayBuffer(capacity=9, capacity_per_prompt=9),
            learner=FakeLearner(config),
            **settings,
        )

    def names(self):
        return sorted(path.name for path in self.layout.checkpoints.iterdir() if not path.name.startswith("."))


@pytest.fixture
def scene(tmp_path):
    scene = Scene(tmp_path)
    yield scene
    scene.disk.gate.set()
    scene.checkpointing.close()


def test_training_goes_on_while_a_checkpoint_is_completed_and_it_holds_the_state_of_its_step(scene):
    scene.checkpointing.write()
    assert scene.names() == [] and scene.checkpointing.take_completed() is None
    scene.state.policy_version = 3
    scene.state.stream_positions[0] = 17

    scene.disk.gate.set()
    scene.checkpointing.finish()
    completed = scene.checkpointing.take_completed()
    assert completed is not None and completed.step == 2 and completed.seconds >= 0
    assert scene.checkpointing.take_completed() is None
    assert scene.names() == ["latest", "step_000002"]
    verify(scene.layout.latest_checkpoint)
    state = read_trainer_state(scene.layout.latest_checkpoint)
    assert (state.policy_version, state.stream_positions) == (2, [0])


def test_next_checkpoint_waits_for_the_one_before(scene):
    scene.checkpointing.write()
    scene.state.policy_version = 4
    scene.checkpointing._note_progress = lambda: (scene.signs.append(1), scene.disk.gate.set())
    scene.checkpointing.write()
    assert scene.layout.latest_checkpoint.resolve().name in ("step_000002", "step_000004")
    assert "step_000002" in scene.names()
    assert scene.signs, "a long wait is reported as progress"
    scene.checkpointing.finish()
    assert scene.names() == ["latest", "step_000002", "step_000004"]


def test_wait_for_the_disk_is_bounded_and_says_what_bounds_it(tmp_path):
    scene = Scene(tmp_path, timeout_s=0.2)
    scene.checkpointing.write()
    with pytest.raises(CheckpointError, match=r"checkpoint 2 is not on the disk after 0\.2 s \(supervision\.progress"):
        scene.checkpointing.finish()
    scene.disk.gate.set()


def test_synchronous_checkpoint_is_complete_when_write_returns(tmp_path):
    scene = Scene(tmp_path, asynchronous=False)
    scene.disk.gate.set()
    scene.checkpointing.write()
    assert scene.names() == ["latest", "step_000002"]
    completed = scene.checkpointing.take_completed()
    assert completed is not None and completed.step == 2


def full(_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("look", ["take_completed", "finish", "write"])
def test_completion_that_fails_is_raised_at_the_next_look(scene, monkeypatch, look):
    monkeypatch.setattr(os, "fsync", full)
    scene.checkpointing.write()
    scene.disk.gate.set()
    scene.checkpointing._pending.exception(timeout=120)
    with pytest.raises(CapacityError, match="Free some disk space"):
        getattr(scene.checkpointing, look)()
    assert scene.names() == []


def test_completion_that_fails_hides_no_earlier_one(scene, monkeypatch):
    scene.disk.gate.set()
    scene.checkpointing.write()
    scene.checkpointing.finish()
    monkeypatch.setattr(os, "fsync", full)
    scene.state.policy_version = 4
    scene.checkpointing.write()
    scene.checkpointing._pending.exception(timeout=120)
    earlier = scene.checkpointing.take_completed()
    assert earlier is not None and earlier.step == 2
    with pytest.raises(CapacityError):
        scene.checkpointing.take_completed()


def test_close_completes_and_only_logs_what_fails_then(scene, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", full)
    scene.checkpointing.write()
    scene.disk.gate.set()
    scene.checkpointing.close()
    assert "Free some disk space" in caplog.text


def wait_for(link):
    until_s = time.monotonic() + 120
    while not link.exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)


# From older versions -------------------------------------------------------------------------------------------------


def written_before(checkpoint, *, unknown_then=(), gone_since=()):
    """A checkpoint as a tbactl would have written it that lacked some of today's settings, or had others."""
    path = CheckpointLayout(checkpoint).trainer_state
    document = json.loads(path.read_bytes())
    for section, name in unknown_then:
        del document["settings"][section][name]
    for section, name in gone_since:
        document["settings"][section][name] = 3
    path.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory):
    run = ScriptedRun(tmp_path_factory.mktemp("ended"))
    run.run()
    return run


def test_checkpoint_from_before_a_setting_existed_is_resumed_with_its_default(ended_run):
    written_before(ended_run.checkpoint(2), unknown_then=[("replay", "eviction"), ("trainer", "adam_betas")])
    state, buffer = restore_state(ended_run.checkpoint(2), ended_run.config)
    assert state.policy_version == 2 and len(buffer) > 0
    assert state.settings == ended_run.config.run.model_dump(mode="json")


def test_checkpoint_from_before_a_setting_existed_is_refused_where_the_run_has_another_value(ended_run):
    written_before(ended_run.checkpoint(4), unknown_then=[("replay", "capacity")])
    default = ReplaySection().capacity
    with pytest.raises(CheckpointError, match=rf"other settings: replay\.capacity was {default}, is 400\.$"):
        restore_state(ended_run.checkpoint(4), ended_run.config)


def test_checkpoint_with_a_setting_that_is_no_more_is_refused_and_names_it(ended_run):
    written_before(ended_run.checkpoint(6), gone_since=[("replay", "forgetfulness")])
    with pytest.raises(CheckpointError, match=r"other settings: replay\.forgetfulness was 3, is null\.$"):
        restore_state(ended_run.checkpoint(6), ended_run.config)


# In the loop ---------------------------------------------------------------------------------------------------------


def test_loop_full_disk_while_completing_ends_the_run_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path)
    update, sync = run.learner.update, os.fsync
    num_updates = 0

    def fill(groups, **target):
        nonlocal num_updates
        num_updates += 1
        if num_updates == 4:
            wait_for(run.config.layout.latest_checkpoint)
            monkeypatch.setattr(os, "fsync", full)
        return update(groups, **target)

    run.learner.update = fill
    with pytest.raises(CapacityError, match="Free some disk space"):
        run.run()
    monkeypatch.setattr(os, "fsync", sync)
    assert run.config.layout.latest_checkpoint.resolve() == run.checkpoint(2)
    verify(run.checkpoint(2))
    assert run.word("checkpoint_step") == 2


def test_loop_shows_the_checkpoint_before_one_that_cannot_be_written(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path)
    save, complete = run.learner.save, CheckpointStore.complete

    def fill(directory):
        if run.word("policy_version") == 4:
            raise CapacityError("full")
        save(directory)

    def complete_late(store, *, step):
        until_s = time.monotonic() + 120
        while (run.word("policy_version"), run.word("phase")) != (4, TrainerPhase.CHECKPOINTING):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        complete(store, step=step)

    run.learner.save = fill
    monkeypatch.setattr(CheckpointStore, "complete", complete_late)
    with pytest.raises(CapacityError, match="full"):
        run.run()
    assert run.word("checkpoint_step") == 2


def test_loop_that_fails_lets_the_last_checkpoint_be_completed(tmp_path):
    run = ScriptedRun(tmp_path)
    update = run.learner.update

    def diverge(groups, **target):
        if run.word("policy_version") == 2:
            raise TbactlError("the policy has diverged")
        return update(groups, **target)

    run.learner.update = diverge
    with pytest.raises(TbactlError, match="diverged"):
        run.run()
    verify(run.checkpoint(2))
    assert run.config.layout.latest_checkpoint.resolve() == run.checkpoint(2)


def test_loop_asynchronous_checkpoints_hold_what_synchronous_ones_hold(tmp_path):
    runs = [ScriptedRun(tmp_path / str(flag), checkpoint={"asynchronous": flag}, **SYNC_MODE) for flag in (True, False)]
    for run in runs:
        run.run()
    for step in (2, 4, 6):
        manifests = [json.loads((run.checkpoint(step) / "manifest.json").read_bytes())["files"] for run in runs]
        ours, theirs = ({f["path"]: f["blake2b"] for f in files} for files in manifests)
        assert ours.pop("trainer_state.json") != theirs.pop("trainer_state.json"), "that holds the setting itself"
        assert ours == theirs
    metrics = [line["metrics"] for line in runs[0].metrics()]
    assert any("trainer/checkpoint_completion_s/sum" in line for line in metrics)
    assert all("trainer/checkpoint_s/sum" in metrics[step] for step in (2, 4))

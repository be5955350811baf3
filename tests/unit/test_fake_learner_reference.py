from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from tbactl.testing.fake_learner import STATE_FILE, FakeLearner
from tests.support.trainer_groups import make_config, make_group


def learner_of(tmp_path, **reference):
    return FakeLearner(
        make_config(tmp_path, policy={"path": "fake"}, trainer={"kind": "fake"}, reference=reference),
    )


def step(learner):
    group = make_group(prompt_tokens=2, completion_tokens=[3, 4, 5, 6], vocabulary=27, rewards=[0.0, 1.0, 0.5, 0.0])
    return learner.update([group], beta=0.1, should_abort=lambda: False).metrics


def state(learner, directory):
    learner.save(directory)
    return load_file(directory / STATE_FILE)


def test_fake_reset_brings_kl_back_to_zero_every_period(tmp_path):
    learner = learner_of(tmp_path, kind="reset", period=3)
    metrics = [step(learner) for _ in range(7)]
    assert [line["trainer/reference_updates/total"] for line in metrics] == [0, 0, 1, 1, 1, 2, 2]
    is_zero = [abs(line["objective/kl/mean"]) < 1e-6 for line in metrics]
    assert is_zero == [True, False, False, True, False, False, True]


def test_fake_ema_moves_by_its_share(tmp_path):
    learner = learner_of(tmp_path, kind="ema", period=1, ema_decay=0.75)
    before = state(learner, tmp_path / "before")["reference"]
    step(learner)
    after = state(learner, tmp_path / "after")
    np.testing.assert_allclose(after["reference"], 0.75 * before + 0.25 * after["logits"], atol=1e-6)


def test_fake_initial_reference_stays(tmp_path):
    learner = learner_of(tmp_path, kind="initial", period=1)
    before = state(learner, tmp_path / "before")["reference"]
    assert step(learner)["trainer/reference_updates/total"] == 0.0
    assert np.array_equal(state(learner, tmp_path / "after")["reference"], before)


@pytest.mark.parametrize("resets_optimizer", [False, True])
def test_fake_reset_resumes_exactly(tmp_path, resets_optimizer):
    whole, resumed = (learner_of(tmp_path, kind="reset", period=2, resets_optimizer=resets_optimizer) for _ in range(2))
    for _ in range(3):
        step(whole)
    whole.save(tmp_path / "saved")
    resumed.load(tmp_path / "saved")
    for _ in range(3):
        assert step(whole) == step(resumed)
    assert state(whole, tmp_path / "end")["velocity"].any() != resets_optimizer

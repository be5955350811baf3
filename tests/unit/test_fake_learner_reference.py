from __future__ import annotations

from dataclasses import replace

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


def test_fake_minimum_length_residual_and_direction_are_those_of_the_barred_policy(tmp_path):
    config = make_config(tmp_path, policy={"path": "fake"}, trainer={"kind": "fake"}, searchers={"min_new_tokens": 2})
    learner = FakeLearner(config)
    first = state(learner, tmp_path / "before")["logits"].astype(float)
    group = make_group(prompt_tokens=2, completion_tokens=[3, 4], vocabulary=20, rewards=[0.0, 1.0])
    group = replace(
        group,
        trajectories=tuple(
            replace(t, completion=replace(t.completion, token_ids=(*ids, 0)))
            for t, ids in zip(group.trajectories, [(1, 2), (3, 4, 5)], strict=True)
        ),
    )
    temperature = config.run.searchers.temperature

    def logprob(logits, ids):
        total = 0.0
        for place, token in enumerate(ids):
            scaled = logits / temperature - (np.where(np.arange(27) == 0, np.inf, 0.0) if place < 2 else 0.0)
            total += scaled[token] - np.log(np.exp(scaled).sum())
        return total

    completions = [t.completion.token_ids for t in group.trajectories]
    ratios = np.array([0.5 * logprob(first, ids) for ids in completions])  # policy and reference are the same yet
    balance = 0.1 * ratios - np.array([0.0, 1.0])
    residuals = balance - balance.mean()
    report = learner.update([group], beta=0.1, reference_exponent=0.5, should_abort=lambda: False)
    assert list(report.residuals.values()) == pytest.approx(residuals, abs=1e-6)
    moved = state(learner, tmp_path / "after")["logits"] - first
    slopes = [
        [(logprob(first + step, ids) - logprob(first - step, ids)) / 2e-5 for step in 1e-5 * np.eye(27)]
        for ids in completions
    ]
    np.testing.assert_allclose(moved, -(residuals[:, None] * np.array(slopes)).mean(axis=0), atol=1e-5)

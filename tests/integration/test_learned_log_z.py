"""Trajectory balance with a learned log Z in the real learner: DeepSpeed on the CPU, a tiny policy, one rank."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from tbactl.checkpoints.consolidate import consolidate
from tbactl.errors import CheckpointError
from tests.support.learner_steps import two_steps
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_groups

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]

BETA = 0.1
LEARNED = {"log_z": "learned", "log_z_learning_rate": 0.05}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", hidden_size=40)


@pytest.fixture
def new_learner(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    learners = []

    def make(*, options=LEARNED, dtype="float32", **trainer):
        settings = {"zero_stage": 1, "micro_batch_tokens": 80, "learning_rate": 1e-3, "max_steps": 10} | trainer
        config = make_config(
            tmp_path,
            policy_directory=policy,
            policy={"path": str(policy), "dtype": dtype},
            objective={"options": options},
            trainer=settings,
        )
        learners.append(DeepSpeedLearner(config))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def step(learner, seed=0):
    return learner.update(make_groups(4, seed=seed), beta=BETA, should_abort=lambda: False).metrics


def exported(learner, directory):
    learner.export_policy(directory)
    return load_file(directory / "model.safetensors")


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith("_s/sum")}


@pytest.mark.parametrize("settings", [{"zero_stage": 0}, {"zero_stage": 3}, {"dtype": "bfloat16"}])
def test_log_z_learns_towards_the_estimate_of_a_policy_that_stands_still(new_learner, settings):
    learner = new_learner(learning_rate=1e-9, **settings)
    reports = [step(learner) for _ in range(25)]
    errors = [report["objective/log_z_error/mean_abs"] for report in reports]
    assert reports[0]["objective/log_z/mean"] == 0.0
    assert errors[0] > 2.0
    assert errors[-1] < 0.3 * errors[0]
    assert all(after < before for before, after in pairwise(errors[:5]))


def test_log_z_begins_at_its_initial_value_for_every_prompt(new_learner):
    report = step(new_learner(options=LEARNED | {"log_z_initial": 4.0}))
    assert report["objective/log_z/mean"] == 4.0
    assert report["objective/log_z/std"] == 0.0


@pytest.mark.parametrize("settings", [{"micro_batch_tokens": 1}, {"gradient_checkpointing": True}])
def test_step_does_not_depend_on_how_it_is_computed(new_learner, tmp_path, settings):
    learners = new_learner(learning_rate=1e-4), new_learner(learning_rate=1e-4, **settings)
    for seed in range(2):
        one, other = (without_times(step(learner, seed)) for learner in learners)
        for name in ("objective/loss/mean", "objective/log_z/mean", "objective/log_z/std", "trainer/grad_norm/value"):
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    weights = [exported(learner, tmp_path / str(number)) for number, learner in enumerate(learners)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.fault("I-58")
@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_checkpoint_resumes_the_head_exactly_and_no_export_holds_it(new_learner, tmp_path, zero_stage):
    whole = new_learner(zero_stage=zero_stage)
    for seed in range(2):
        step(whole, seed)
    whole.save(tmp_path / "learner")
    live = exported(whole, tmp_path / "live")
    whole.write_weights(tmp_path / "published.safetensors")
    expected = [step(whole, seed) for seed in (2, 3)]

    resumed = new_learner(zero_stage=zero_stage)
    resumed.load(tmp_path / "learner")
    for seed, report in zip((2, 3), expected, strict=True):
        assert report["objective/log_z/mean"] != 0.0
        assert without_times(step(resumed, seed)) == without_times(report)

    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    consolidated = load_file(tmp_path / "consolidated" / "model.safetensors")
    assert consolidated.keys() == live.keys()
    assert all(torch.equal(consolidated[name], live[name]) for name in live)
    published = load_file(tmp_path / "published.safetensors")
    assert not [name for weights in (live, published, consolidated) for name in weights if "log_z" in name]


def test_checkpoint_without_the_head_is_refused_by_name(new_learner, tmp_path):
    new_learner(options={}).save(tmp_path / "learner")
    with pytest.raises(CheckpointError, match=r"(?i)learns_log_z was false, is true"):
        new_learner().load(tmp_path / "learner")


# Two ranks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_rank(policy, tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks") / "one"
    return two_steps(root, policy, num_ranks=1, zero_stage=1, objective={"options": LEARNED})


@pytest.mark.parametrize("zero_stage", [3])
def test_two_ranks_do_the_same_steps_as_one(policy, tmp_path, one_rank, zero_stage):
    """Five prompts for two ranks: one of them has a pass without data, which the head takes part in."""
    result, weights = two_steps(
        tmp_path / "two", policy, num_ranks=2, zero_stage=zero_stage, objective={"options": LEARNED}
    )
    expected, expected_weights = one_rank
    assert weights.keys() == expected_weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected_weights[name], atol=1e-5, rtol=0, msg=name)
    for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
        for name in ("objective/loss/mean", "objective/log_z/mean", "objective/log_z/std", "trainer/grad_norm/value"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    assert result["metrics"][1]["objective/log_z/std"] > 0
    consolidate(tmp_path / "two" / "learner", tmp_path / "consolidated")
    assert load_file(tmp_path / "consolidated" / "model.safetensors").keys() == weights.keys()

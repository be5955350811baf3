"""A reference policy that moves: replaced by the policy every few steps, or averaged with it. DeepSpeed on the CPU."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tbactl.errors import CheckpointError
from tbactl.ipc.control_page import RunState
from tests.support.rank_processes import run_ranks
from tests.support.scripted_run import SYNC_MODE, ScriptedRun
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("process_group")]

UPDATES = "trainer/reference_updates/total"
KL = "objective/kl/mean"
RESET = {"kind": "reset", "period": 2}
EMA = {"kind": "ema", "period": 2, "ema_decay": 0.75}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", hidden_size=40)


@pytest.fixture
def new_learner(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    learners = []

    def make(reference, *, directory=policy, dtype="float32", zero_stage=1, learning_rate=1e-3):
        config = make_config(
            tmp_path,
            policy_directory=directory,
            policy={"path": str(directory), "dtype": dtype},
            reference=reference,
            trainer={"zero_stage": zero_stage, "micro_batch_tokens": 80, "learning_rate": learning_rate},
        )
        learners.append(DeepSpeedLearner(config))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def step(learner, seed=0):
    """One on four groups, the same for the same seed: their reference log-probs are remembered."""
    return learner.update(make_groups(4, seed=seed), beta=0.1, should_abort=lambda: False).metrics


def exported(learner, directory):
    learner.export_policy(directory)
    return load_file(directory / "model.safetensors")


def saved_reference(learner, directory):
    learner.save(directory)
    return load_file(directory / "reference.safetensors")


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert not [name for name in a if not torch.equal(a[name], b[name])]


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith("_s/sum")}


# Resets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_reset_makes_the_reference_the_policy_of_that_moment(new_learner, tmp_path, zero_stage):
    learner = new_learner(RESET, zero_stage=zero_stage)
    metrics = [step(learner) for _ in range(2)]
    assert_same(saved_reference(learner, tmp_path / "saved"), exported(learner, tmp_path / "exported"))
    metrics += [step(learner) for _ in range(2)]

    kls = [line[KL] for line in metrics]
    assert kls[::2] == pytest.approx([0.0, 0.0], abs=1e-4)
    assert min(abs(kl) for kl in kls[1::2]) > 1e-3
    assert [line[UPDATES] for line in metrics] == [0.0, 1.0, 1.0, 2.0]
    # What was remembered of the old reference is forgotten: the same trajectories are computed again.
    assert [line["trainer/reference_computed/share"] for line in metrics] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_reset_that_forgets_the_optimizer_goes_on_like_a_new_run(new_learner, tmp_path, zero_stage):
    resetting = new_learner(RESET | {"resets_optimizer": True}, zero_stage=zero_stage)
    keeping = new_learner(RESET, zero_stage=zero_stage)
    for learner in (resetting, keeping):
        step(learner, 1), step(learner, 2)
    resetting.export_policy(tmp_path / "policy")
    new = new_learner({"kind": "initial"}, directory=tmp_path / "policy", zero_stage=zero_stage)
    weights = []
    for learner in (resetting, new, keeping):
        step(learner, 3), step(learner, 4)
        weights.append(exported(learner, tmp_path / str(len(weights))))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-7, rtol=0, msg=name)
    assert any((weights[0][name] - weights[2][name]).abs().max() > 1e-5 for name in weights[0])


def test_reset_is_counted_in_steps_that_were_done(new_learner):
    learner = new_learner(RESET)
    step(learner)
    assert learner.update(make_groups(4), beta=0.1, should_abort=lambda: True) is None
    assert [step(learner)[UPDATES], step(learner)[UPDATES]] == [1.0, 1.0]


# Averages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zero_stage", "dtype"), [(0, "float32"), (3, "float32"), (1, "bfloat16")])
def test_ema_equals_that_of_plain_torch(new_learner, tmp_path, policy, zero_stage, dtype):
    learner = new_learner(EMA, zero_stage=zero_stage, dtype=dtype)
    average = exported(learner, tmp_path / "0")
    average = {name: tensor.double() for name, tensor in average.items()}
    for number in range(1, 7):
        assert step(learner, number)[UPDATES] == number // 2
        if number % 2 == 0:
            weights = exported(learner, tmp_path / str(number))
            average = {name: 0.75 * tensor + 0.25 * weights[name].double() for name, tensor in average.items()}
    found = saved_reference(learner, tmp_path / "saved")
    assert found.keys() == average.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), average[name], atol=1e-6, rtol=1e-6, msg=name)


def test_ema_of_bfloat16_moves_by_less_than_bfloat16_can_hold(new_learner, tmp_path):
    learner = new_learner({"kind": "ema", "period": 1, "ema_decay": 0.999}, dtype="bfloat16")
    before = exported(learner, tmp_path / "before")
    step(learner)
    found = saved_reference(learner, tmp_path / "saved")
    moved = [name for name, tensor in found.items() if not torch.equal(tensor, before[name].float())]
    lost = [name for name in moved if torch.equal(found[name].bfloat16(), before[name])]
    assert moved and lost


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("I-58")
@pytest.mark.parametrize(
    ("reference", "zero_stage", "dtype"),
    [
        (RESET | {"resets_optimizer": True}, 0, "bfloat16"),
        (RESET | {"resets_optimizer": True}, 2, "float32"),
        (RESET | {"resets_optimizer": True}, 3, "float32"),
        (EMA, 1, "float32"),
        (EMA, 2, "bfloat16"),
        (EMA, 3, "bfloat16"),
    ],
)
def test_resume_continues_exactly(new_learner, tmp_path, reference, zero_stage, dtype):
    whole = new_learner(reference, zero_stage=zero_stage, dtype=dtype)
    for seed in range(3):
        step(whole, seed)
    whole.save(tmp_path / "learner")
    resumed = new_learner(reference, zero_stage=zero_stage, dtype=dtype)
    resumed.load(tmp_path / "learner")
    # The fourth step is followed by the second update, the fifth is made against it.
    for seed in (3, 4):
        assert without_times(step(resumed, seed)) == without_times(step(whole, seed))
    assert_same(exported(whole, tmp_path / "a"), exported(resumed, tmp_path / "b"))
    assert_same(saved_reference(whole, tmp_path / "c"), saved_reference(resumed, tmp_path / "d"))


@pytest.mark.parametrize(("reference", "num_steps"), [({"kind": "initial"}, 2), (RESET, 1), (EMA, 1)])
def test_save_reference_that_is_the_initial_policy_is_not_written(new_learner, tmp_path, reference, num_steps):
    learner = new_learner(reference)
    for _ in range(num_steps):
        step(learner)
    learner.save(tmp_path / "learner")
    assert (tmp_path / "learner" / "reference.json").exists()
    assert not (tmp_path / "learner" / "reference.safetensors").exists()
    new_learner(reference).load(tmp_path / "learner")


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        (RESET, {"kind": "initial"}, r"were reference.kind = reset, .*, they are reference.kind = initial"),
        ({"kind": "initial"}, EMA, r"they are reference.kind = ema, reference.period = 2, reference.ema_decay = 0.75"),
        (RESET, RESET | {"period": 3}, r"reference.period = 2, .* reference.period = 3"),
        (EMA, EMA | {"ema_decay": 0.5}, r"reference.ema_decay = 0.75, .* reference.ema_decay = 0.5"),
    ],
)
def test_load_checkpoint_of_other_settings_is_refused(new_learner, tmp_path, written, read, message):
    new_learner(written).save(tmp_path / "learner")
    with pytest.raises(CheckpointError, match=message):
        new_learner(read).load(tmp_path / "learner")


def test_load_settings_without_effect_may_differ(new_learner, tmp_path):
    new_learner({"kind": "initial"}).save(tmp_path / "learner")
    new_learner({"kind": "initial", "period": 3}).load(tmp_path / "learner")


def test_load_damaged_reference_is_refused(new_learner, tmp_path):
    learner = new_learner(RESET)
    for _ in range(2):
        step(learner)
    path = tmp_path / "learner" / "reference.safetensors"
    weights = saved_reference(learner, tmp_path / "learner")
    weights["model.norm.weight"][0] += 1
    save_file(weights, path)
    with pytest.raises(CheckpointError, match="damaged"):
        new_learner(RESET).load(tmp_path / "learner")
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        new_learner(RESET).load(tmp_path / "learner")


# In the loop, and on two ranks ---------------------------------------------------------------------------------------


@pytest.mark.fault("I-56")
def test_sync_run_with_resets_resumes_bit_for_bit(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    settings = SYNC_MODE | {
        "policy": {"path": str(policy)},
        "reference": RESET,
        "trainer": {"kind": "deepspeed", "zero_stage": 1, "learning_rate": 1e-3},
    }

    def scripted(name, **kwargs):
        run = ScriptedRun(tmp_path / name, policy_directory=policy, learner=DeepSpeedLearner, **settings, **kwargs)
        for searcher in run.searchers:
            searcher.reads_weights = False
        return run

    whole = scripted("whole")
    whole.run()
    first = scripted("first")
    first.ask(RunState.DRAINING, at_version=3)
    first.run()
    second = scripted("second", resume=first.config.layout.latest_checkpoint)
    second.run()
    for name in ("policy/model.safetensors", "learner/reference.safetensors"):
        assert (whole.checkpoint(6) / name).read_bytes() == (second.checkpoint(6) / name).read_bytes(), name
    assert [line["metrics"][UPDATES] for line in whole.metrics()] == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize(("reference", "zero_stage"), [(EMA, 1), (RESET, 3)], ids=["ema", "reset"])
def test_two_ranks_move_the_reference_as_one(new_learner, tmp_path, policy, reference, zero_stage):
    run_ranks(
        tmp_path / "ranks",
        policy,
        num_ranks=2,
        arguments=("3",),
        reference=reference,
        trainer={"zero_stage": zero_stage, "micro_batch_tokens": 80, "learning_rate": 1e-4},
    )
    together = json.loads((tmp_path / "ranks" / "result.json").read_text())["metrics"]
    alone = new_learner(reference, zero_stage=zero_stage, learning_rate=1e-4)
    expected = [
        alone.update(make_groups(5, seed=seed), beta=0.1, should_abort=lambda: False).metrics for seed in range(3)
    ]
    weights = saved_reference(alone, tmp_path / "alone")
    for name, tensor in load_file(tmp_path / "ranks" / "learner" / "reference.safetensors").items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-5, rtol=0, msg=name)
    assert [line[UPDATES] for line in together] == [0.0, 1.0, 1.0]
    # The mean over both ranks: neither holds another reference.
    assert [line[KL] for line in together] == pytest.approx([line[KL] for line in expected], rel=1e-3, abs=1e-4)
    if reference == RESET:
        assert together[2][KL] == pytest.approx(0.0, abs=1e-4)

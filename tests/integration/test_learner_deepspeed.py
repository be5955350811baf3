"""The real learner: DeepSpeed on the CPU, tiny policies, checked against plain torch. One process, one rank, but where
two are the point."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.resume_digest import PARTS, digests
from tbactl.checkpoints.consolidate import consolidate
from tbactl.config.tasks import reward_metrics
from tbactl.errors import CheckpointError, ConfigError
from tbactl.ipc.codec import encode
from tbactl.ipc.control_page import RunState
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tbactl.protocols import ProbeBatch
from tbactl.trainer.collate import collate
from tbactl.trainer.ranks import Command
from tbactl.trainer.scoring import ScoringModel
from tests.support.documented_metrics import documented_metrics
from tests.support.learner_steps import two_steps
from tests.support.scripted_run import SYNC_MODE, ScriptedRun
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("process_group")]

BETA = 0.1
# Metrics that a run in mode sync does not have.
IN_ASYNC_MODE = {
    "trainer/intake_s/sum",
    "trainer/sample_s/sum",
    *(f"objective/residual_age_{ages}/mean_abs" for ages in ("1", "2_to_3", "4_to_7", "8_to_15", "from_16")),
}
OF_OTHER_OBJECTIVES = {
    "objective/clipped/share",
    "objective/log_z_error/mean_abs",
    "objective/pairs/share",
    "objective/preference_accuracy/share",
    "objective/preference_margin/mean",
    "objective/reference_temperature/value",
    "objective/target_temperature/value",
}
TASKS = ("math", "preference", "redteam")
OF_TASKS = {f"searcher/reward_{name}/mean" for task in TASKS for name in reward_metrics(task)}
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Llama with a tied head; hidden size 40 gives parameters of odd sizes."""
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", hidden_size=40)


@pytest.fixture
def new_learner(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    learners = []

    def make(*, dtype="float32", directory=policy, mode="async", **trainer):
        settings = {"zero_stage": 1, "micro_batch_tokens": 80, "learning_rate": 1e-3, "max_steps": 10} | trainer
        config = make_config(
            tmp_path,
            mode=mode,
            policy_directory=directory,
            policy={"path": str(directory), "dtype": dtype},
            searchers={"temperature": TEMPERATURE},
            trainer=settings,
        )
        learners.append(DeepSpeedLearner(config))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def step(learner, seed, **kwargs):
    report = learner.update(make_groups(4, seed=seed), beta=BETA, should_abort=lambda: False, **kwargs)
    return report.metrics


def exported(learner, directory):
    learner.export_policy(directory)
    return load_file(directory / "model.safetensors")


def assert_same(a, b):
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith("_s/sum")}


# Against plain torch -------------------------------------------------------------------------------------------------


def plain_training(directory, *, seeds, learning_rate=1e-3, max_grad_norm=1.0):
    """The same steps by torch alone: one padded batch, AdamW, clipping."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(directory).eval() for _ in range(2))
    scorers = [ScoringModel(model, temperature=TEMPERATURE, chunk_tokens=4096) for model in (policy, reference)]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    reports = []
    for seed in seeds:
        batch = collate(make_groups(4, seed=seed), shares_prompt=False)
        with torch.no_grad():
            reference_logprobs = scorers[1](batch)
        loss, _ = TrajectoryBalance()(
            ObjectiveBatch(
                policy_logprobs=scorers[0](batch),
                reference_logprobs=reference_logprobs,
                behavior_logprobs=batch.behavior_logprobs,
                completion_mask=batch.completion_mask,
                rewards=batch.rewards,
                group_index=batch.group_index,
                num_groups=batch.num_groups,
                num_prompt_tokens=batch.num_prompt_tokens,
                num_trajectories_global=len(batch.rewards),
                num_groups_global=batch.num_groups,
                num_tokens_global=int(batch.completion_mask.sum()),
                max_completion_tokens=batch.completion_mask.shape[1],
                beta=BETA,
            )
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()
        reports.append((loss.item(), norm.item()))
    return reports, policy.state_dict()


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_steps_equal_those_of_plain_torch(new_learner, policy, tmp_path, zero_stage):
    learner = new_learner(zero_stage=zero_stage, learning_rate=1e-4)
    metrics = [step(learner, seed) for seed in range(3)]
    reports, weights = plain_training(policy, seeds=range(3), learning_rate=1e-4)

    for (loss, norm), measured in zip(reports, metrics, strict=True):
        assert measured["objective/loss/mean"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert measured["trainer/grad_norm/value"] == pytest.approx(norm, rel=1e-4)
    ours = exported(learner, tmp_path / "export")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.fault("I-32")
@pytest.mark.parametrize(
    "settings",
    [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 100_000}, {"gradient_checkpointing": True}],
    ids=["one group a pass", "one pass", "gradient checkpointing"],
)
def test_step_does_not_depend_on_how_it_is_computed(new_learner, tmp_path, settings):
    weights = []
    for number, chosen in enumerate(({}, settings)):
        learner = new_learner(learning_rate=1e-4, **chosen)
        step(learner, 0)
        weights.append(exported(learner, tmp_path / str(number)))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0, msg=name)


def test_reference_stays_the_initial_policy_while_the_policy_moves(new_learner):
    learner = new_learner()
    assert step(learner, 0)["objective/kl/mean"] == pytest.approx(0.0, abs=1e-4)
    assert abs(step(learner, 0)["objective/kl/mean"]) > 1e-3
    assert step(learner, 0)["trainer/reference_computed/share"] == 0.0


@pytest.mark.fault("R-06")
def test_schedule_first_update_uses_its_first_value(new_learner):
    learner = new_learner(lr_schedule="warmup_stable_decay", warmup_steps=2, lr_schedule_options={"num_decay_steps": 4})
    rates = [step(learner, seed)["trainer/learning_rate/value"] for seed in range(8)]
    assert rates[:4] == pytest.approx([0.0, 0.5e-3, 1e-3, 1e-3])
    assert rates[7] < 1e-3


def test_aborted_step_leaves_weights_and_the_next_step_as_if_it_had_not_been(new_learner, tmp_path):
    answers = iter([False, True])
    disturbed, calm = new_learner(micro_batch_tokens=1), new_learner(micro_batch_tokens=1)
    before = exported(disturbed, tmp_path / "before")
    assert disturbed.update(make_groups(4, seed=9), beta=BETA, should_abort=lambda: next(answers)) is None
    assert_same(before, exported(disturbed, tmp_path / "after"))
    for learner in (disturbed, calm):
        step(learner, 1)
    assert_same(exported(disturbed, tmp_path / "a"), exported(calm, tmp_path / "b"))


@pytest.mark.fault("I-25")
def test_probe_logprobs_are_those_of_temperature_one(new_learner, policy):
    learner = new_learner()
    ids, start = (5, 6, 7, 8, 9), 2
    (measured,) = learner.probe_logprobs(ProbeBatch(sequences=((ids, start),)))
    logits = AutoModelForCausalLM.from_pretrained(policy)(torch.tensor([ids])).logits[0]
    expected = logits.log_softmax(-1)[torch.arange(start - 1, 4), torch.tensor(ids[start:])]
    assert measured == pytest.approx(expected.tolist(), abs=1e-4)


def test_options_of_the_learner_are_refused(new_learner):
    with pytest.raises(ConfigError, match="the learner 'deepspeed' has none, got colour"):
        new_learner(options={"colour": "red"})


def test_objective_that_reads_what_no_batch_holds_is_refused():
    from tbactl.trainer.learner import check_required_fields

    class Foreign(TrajectoryBalance):
        required_fields = frozenset({"rewards", "advantages"})

    with pytest.raises(ConfigError, match="'foreign' requires advantages; a batch holds behavior_logprobs"):
        check_required_fields(Foreign(), kind="foreign")


@pytest.mark.fault("I-04")
def test_follower_reports_progress_before_each_micro_batch(new_learner, monkeypatch):
    learner = new_learner(micro_batch_tokens=1)
    records = [encode(group) for group in make_groups(4)]
    arguments = {"beta": BETA, "reference_exponent": 1.0, "sizes": [len(record) for record in records]}
    commands = iter([Command(name="update", arguments=arguments, blob=b"".join(records)), Command(name="stop")])
    monkeypatch.setattr(learner._ranks, "receive", lambda *, while_waiting: next(commands))
    signs = []
    learner.serve(while_waiting=lambda: signs.append("alive"))
    assert len(signs) == 4


# Weights and checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.fault("I-22")
def test_published_weights_carry_the_tied_head(new_learner, tmp_path):
    learner = new_learner()
    step(learner, 0)
    learner.write_weights(tmp_path / "weights.safetensors")
    weights = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    expected = exported(learner, tmp_path / "export")
    assert_same({name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}, expected)


@pytest.mark.fault("I-54", "I-55", "I-75", "I-76", "I-77", "I-78")
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_checkpoint_any_stage_resumes_exactly_and_consolidates_to_the_export(new_learner, tmp_path, zero_stage):
    settings = {"zero_stage": zero_stage, "lr_schedule": "linear", "warmup_steps": 3}
    whole = new_learner(**settings)
    for seed in range(2):
        step(whole, seed)
    whole.save(tmp_path / "learner")
    live = exported(whole, tmp_path / "live")
    expected = step(whole, 2)

    resumed = new_learner(**settings)
    resumed.load(tmp_path / "learner")
    assert without_times(step(resumed, 2)) | {"trainer/reference_computed/share": 1.0} == without_times(expected)
    assert_same(exported(whole, tmp_path / "a"), exported(resumed, tmp_path / "b"))

    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), live)
    ids = torch.tensor([[1, 2, 3, 4]])
    logits = [AutoModelForCausalLM.from_pretrained(tmp_path / name)(ids).logits for name in ("live", "consolidated")]
    assert torch.equal(*logits)


@pytest.mark.fault("I-77")
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_checkpoint_bfloat16_keeps_float32_masters_and_exports_bfloat16(new_learner, tmp_path, zero_stage):
    learner = new_learner(dtype="bfloat16", zero_stage=zero_stage)
    metrics = step(learner, 0)
    assert metrics["trainer/grad_norm/value"] > 0
    learner.save(tmp_path / "learner")
    live = exported(learner, tmp_path / "live")
    assert {tensor.dtype for tensor in live.values()} == {torch.bfloat16}
    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), live)


@pytest.mark.fault("I-78")
def test_checkpoint_untied_architecture_consolidates(new_learner, tmp_path):
    directory = make_tiny_policy(tmp_path / "neox", architecture="gpt_neox", hidden_size=40)
    learner = new_learner(directory=directory, zero_stage=3)
    step(learner, 0)
    learner.save(tmp_path / "learner")
    live = exported(learner, tmp_path / "live")
    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), live)


def test_checkpoint_of_another_stage_is_refused(new_learner, tmp_path):
    new_learner(zero_stage=1).save(tmp_path / "learner")
    with pytest.raises(CheckpointError, match="zero_stage was 1, is 2"):
        new_learner(zero_stage=2).load(tmp_path / "learner")


@pytest.mark.fault("I-53")
def test_checkpoint_of_another_number_of_ranks_is_refused(new_learner, tmp_path):
    learner = new_learner(zero_stage=1)
    learner.save(tmp_path / "learner")
    path = tmp_path / "learner" / "learner.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"num_ranks": 2}))
    with pytest.raises(CheckpointError, match="cannot be continued with these settings: num_ranks was 2, is 1"):
        learner.load(tmp_path / "learner")


class Payload:
    """What an attacker would put into a pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("reader", ["learner", "consolidate"])
def test_checkpoint_with_code_in_it_runs_nothing(new_learner, tmp_path, reader):
    learner = new_learner(zero_stage=0)
    learner.save(tmp_path / "learner")
    trap = tmp_path / "trapped"
    torch.save({"module": Payload(trap)}, tmp_path / "learner" / "deepspeed" / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError):
        if reader == "learner":
            learner.load(tmp_path / "learner")
        else:
            consolidate(tmp_path / "learner", tmp_path / "out")
    assert not trap.exists()


@pytest.mark.fault("I-79")
def test_consolidate_missing_or_foreign_parameters_are_fatal(new_learner, tmp_path):
    new_learner(zero_stage=0).save(tmp_path / "learner")
    path = tmp_path / "learner" / "deepspeed" / "mp_rank_00_model_states.pt"
    whole = torch.load(path, weights_only=True)

    def consolidated(change):
        module = dict(whole["module"])
        change(module)
        torch.save({"module": module}, path)
        consolidate(tmp_path / "learner", tmp_path / "out")

    with pytest.raises(CheckpointError, match=r"missing: model\.norm\.weight"):
        consolidated(lambda module: module.pop("policy.model.norm.weight"))
    with pytest.raises(CheckpointError, match="unknown: another"):
        consolidated(lambda module: module.update({"policy.another": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="size mismatch"):
        consolidated(lambda module: module.update({"policy.model.norm.weight": torch.zeros(3)}))


def test_consolidate_missing_shard_is_named(new_learner, tmp_path):
    new_learner(zero_stage=3).save(tmp_path / "learner")
    (tmp_path / "learner" / "deepspeed" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="no optimizer shard of rank 0"):
        consolidate(tmp_path / "learner", tmp_path / "out")


# One seed, one result ------------------------------------------------------------------------------------------------


def test_only_mode_sync_adds_gradients_in_one_order(new_learner):
    # Threads that add in any order differ now and then only: seen is what forbids it.
    new_learner()
    assert not torch.are_deterministic_algorithms_enabled()
    learner = new_learner(mode="sync")
    assert torch.are_deterministic_algorithms_enabled()
    learner.close()
    assert not torch.are_deterministic_algorithms_enabled()


# In the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("I-54", "I-56", "I-58", "I-85")
def test_sync_run_resumes_bit_for_bit(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    settings = SYNC_MODE | {
        "policy": {"path": str(policy)},
        "trainer": {"kind": "deepspeed", "zero_stage": 1, "learning_rate": 1e-3, "lr_schedule": "linear"},
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

    for name in ("policy/model.safetensors", "replay/trajectories.msgpack"):
        assert (whole.checkpoint(6) / name).read_bytes() == (second.checkpoint(6) / name).read_bytes(), name
    ours, theirs = (digests(run.config.layout.root, step=6) for run in (whole, second))
    # Each has the metrics of its own steps; they are compared below.
    assert {part: ours[part] for part in PARTS[:-1]} == {part: theirs[part] for part in PARTS[:-1]}
    expected = {line["step"]: line["metrics"] for line in whole.metrics()}
    emitted = {name for metrics in expected.values() for name in metrics}
    assert emitted | IN_ASYNC_MODE | OF_OTHER_OBJECTIVES | OF_TASKS == documented_metrics()
    for line in second.metrics():
        for name in ("objective/loss/mean", "trainer/learning_rate/value", "trainer/grad_norm/value"):
            assert line["metrics"][name] == expected[line["step"]][name], (line["step"], name)


# Two ranks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_rank(policy, tmp_path_factory):
    return two_steps(tmp_path_factory.mktemp("ranks") / "one", policy, num_ranks=1, zero_stage=1)


@pytest.mark.fault("I-04", "I-75", "I-76")
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_two_ranks_do_the_same_steps_as_one(policy, tmp_path, one_rank, zero_stage):
    result, weights = two_steps(tmp_path / "two", policy, num_ranks=2, zero_stage=zero_stage)
    expected, expected_weights = one_rank

    assert weights.keys() == expected_weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected_weights[name], atol=1e-5, rtol=0, msg=name)
    for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
        for name in ("objective/loss/mean", "objective/kl/mean", "objective/log_z/std", "trainer/grad_norm/value"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
        assert ours["trainer/reference_computed/share"] == 1.0
    assert result["aborted"] is None
    for ours, theirs in zip(result["residuals"], expected["residuals"], strict=True):
        assert [uid for uid, _ in ours] == [uid for uid, _ in theirs]
        assert [value for _, value in ours] == pytest.approx([value for _, value in theirs], rel=1e-3, abs=1e-5)
    for ours, theirs in zip(result["probe"], expected["probe"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
    consolidate(tmp_path / "two" / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), weights)
    assert "lm_head.weight" in load_file(Path(tmp_path / "two" / "weights.safetensors"))

"""Adapters in the real learner, and their way to real engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tbactl.checkpoints.consolidate import consolidate
from tbactl.checkpoints.resolve import resolved_policy
from tbactl.config.layout import CheckpointLayout
from tbactl.errors import CheckpointError
from tbactl.ipc.control_page import RunState
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tbactl.protocols import ProbeBatch
from tbactl.trainer.collate import collate
from tbactl.trainer.scoring import ScoringModel
from tbactl.weight_sync import adapter_file
from tbactl.weight_sync.published import weights_path
from tbactl.weight_sync.publisher import publish
from tests.support.lora_sync_process import NUM_TOKENS, PROMPT, make_engine, take_weights
from tests.support.scripted_run import SYNC_MODE, ScriptedRun
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("process_group")]

BETA = 0.1
TEMPERATURE = 0.7
PROBE = ProbeBatch(sequences=(((5, 6, 7, 8, 9, 10), 2), ((1, 2, 3), 1)))
LORA = {"lora_rank": 4, "lora_alpha": 6.0}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Llama with a tied head; hidden size 40 gives parameters of odd sizes."""
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", hidden_size=40)


@pytest.fixture(scope="module")
def servable_policy(tmp_path_factory):
    """Of a head size that vLLM supports."""
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "servable")


@pytest.fixture
def new_learner(tmp_path, policy):
    from tbactl.trainer.learner import DeepSpeedLearner

    learners = []

    def make(*, dtype="float32", directory=policy, weights="merged", lora=LORA, objective=None, **trainer):
        config = make_config(
            tmp_path,
            policy_directory=directory,
            policy={"path": str(directory), "dtype": dtype} | lora,
            searchers={"temperature": TEMPERATURE},
            sync={"weights": weights},
            objective=objective or {},
            trainer={"zero_stage": 1, "micro_batch_tokens": 80, "learning_rate": 1e-3, "max_steps": 10} | trainer,
        )
        learners.append(DeepSpeedLearner(config))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def step(learner, seed):
    return learner.update(make_groups(4, seed=seed), beta=BETA, should_abort=lambda: False).metrics


def exported(learner, root):
    """As a checkpoint has it: policy/ and adapter/."""
    root.mkdir()
    learner.export_policy(CheckpointLayout(root).policy)
    return load_file(CheckpointLayout(root).policy / "model.safetensors")


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert not [name for name in a if not torch.equal(a[name], b[name])]


def hub_model(directory, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def logprobs(model, probe=PROBE):
    scores = []
    for ids, start in probe.sequences:
        with torch.no_grad():
            table = model(torch.tensor([ids])).logits[0, start - 1 : -1].float().log_softmax(-1)
        scores.append(tuple(table.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0].tolist()))
    return scores


def approximately(scores, tolerance):
    return [pytest.approx(list(score), abs=tolerance) for score in scores]


# Training ------------------------------------------------------------------------------------------------------------


def plain_training(directory, initial_adapter, *, seeds, learning_rate):
    """The same steps by peft and torch alone: one padded batch, AdamW, clipping; reference = adapters disabled."""
    model = get_peft_model(
        hub_model(directory), LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    start = {name.replace(".weight", ".default.weight"): tensor for name, tensor in initial_adapter.items()}
    assert not model.load_state_dict(start, strict=False).unexpected_keys
    scorer = ScoringModel(model.get_base_model(), temperature=TEMPERATURE, chunk_tokens=4096)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    reports = []
    for seed in seeds:
        batch = collate(make_groups(4, seed=seed), shares_prompt=False)
        with torch.no_grad(), model.disable_adapter():
            reference_logprobs = scorer(batch)
        loss, _ = TrajectoryBalance()(
            ObjectiveBatch(
                policy_logprobs=scorer(batch),
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
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        reports.append((loss.item(), norm.item()))
    return reports, model.merge_and_unload().state_dict()


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_steps_equal_those_of_plain_peft(new_learner, policy, tmp_path, zero_stage):
    learner = new_learner(zero_stage=zero_stage, learning_rate=1e-4)
    base = exported(learner, tmp_path / "initial")
    assert_same(base, load_file(policy / "model.safetensors"))
    initial = load_file(tmp_path / "initial" / "adapter" / "adapter_model.safetensors")
    metrics = [step(learner, seed) for seed in range(3)]
    reports, weights = plain_training(policy, initial, seeds=range(3), learning_rate=1e-4)
    for (loss, norm), measured in zip(reports, metrics, strict=True):
        assert measured["objective/loss/mean"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert measured["trainer/grad_norm/value"] == pytest.approx(norm, rel=1e-4)
    for name, tensor in exported(learner, tmp_path / "after").items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-6, rtol=0, msg=name)
        is_adapted = name.endswith("_proj.weight")
        assert torch.equal(tensor, base[name]) != is_adapted, name


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_optimizer_holds_states_of_adapters_only(new_learner, zero_stage):
    learner = new_learner(zero_stage=zero_stage)
    step(learner, 0)
    optimizer = learner._backend._engine.optimizer
    sizes = [
        tensor.numel()
        for state in optimizer.optimizer.state.values()
        for name, tensor in state.items()
        if name == "exp_avg"
    ]
    assert sum(sizes) == sum(
        parameter.ds_numel if zero_stage == 3 else parameter.numel() for parameter in trained(learner)
    )


def trained(learner):
    return [parameter for parameter in learner._policy.model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_reference_is_the_base_exactly_however_far_the_policy_has_moved(new_learner, policy, zero_stage, dtype):
    learner = new_learner(zero_stage=zero_stage, learning_rate=3e-2, dtype=dtype)
    assert step(learner, 0)["objective/kl/mean"] == 0.0
    assert abs(step(learner, 1)["objective/kl/mean"]) > 1e-2
    metrics = step(learner, 2)
    assert metrics["trainer/reference_computed/share"] == 1.0
    base = ScoringModel(hub_model(policy, getattr(torch, dtype)), temperature=TEMPERATURE, chunk_tokens=4096)
    reference = learner._updater._reference
    for group in make_groups(4, seed=7):
        batch = collate([group], shares_prompt=True)
        with torch.no_grad():
            expected = base(batch)
        assert torch.equal(reference.logprobs([group], batch, device=torch.device("cpu")), expected)


@pytest.mark.parametrize("setting", [{"gradient_checkpointing": True}, {"micro_batch_tokens": 1}])
def test_step_does_not_depend_on_how_it_is_computed(new_learner, tmp_path, setting):
    weights = []
    for number, chosen in enumerate(({}, setting)):
        learner = new_learner(learning_rate=1e-4, **chosen)
        step(learner, 0)
        weights.append(exported(learner, tmp_path / str(number)))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0, msg=name)


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("I-55")
@pytest.mark.parametrize(
    ("zero_stage", "dtype", "architecture"),
    [
        (0, "float32", "llama"),
        (1, "float32", "llama"),
        (2, "float32", "gpt2"),
        (3, "float32", "llama"),
        (3, "bfloat16", "gpt2"),
        (1, "bfloat16", "gpt_neox"),
    ],
)
def test_checkpoint_resumes_exactly_and_all_its_forms_agree(new_learner, tmp_path, zero_stage, dtype, architecture):
    directory = make_tiny_policy(tmp_path / "base", architecture=architecture, hidden_size=40)
    settings = {"zero_stage": zero_stage, "dtype": dtype, "directory": directory, "lr_schedule": "linear"}
    whole = new_learner(**settings, learning_rate=1e-2)
    step(whole, 0)
    live = exported(whole, tmp_path / "live")
    whole.save(tmp_path / "live" / "learner")
    probe = whole.probe_logprobs(PROBE)
    step(whole, 1)

    resumed = new_learner(**settings, learning_rate=1e-2)
    resumed.load(tmp_path / "live" / "learner")
    assert resumed.probe_logprobs(PROBE) == probe
    assert_same(exported(resumed, tmp_path / "resumed"), live)
    step(resumed, 1)
    assert_same(exported(resumed, tmp_path / "a"), exported(whole, tmp_path / "b"))

    consolidate(tmp_path / "live" / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), live)
    kind = getattr(torch, dtype)
    tolerance = 1e-3 if dtype == "float32" else 0.3
    assert logprobs(hub_model(tmp_path / "live" / "policy", kind)) == approximately(probe, tolerance)
    in_peft = PeftModel.from_pretrained(
        hub_model(directory, kind), tmp_path / "live" / "adapter", autocast_adapter_dtype=False
    )
    assert logprobs(in_peft.eval()) == approximately(probe, 1e-4 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_learned_log_z_is_trained_beside_adapters_and_stays_out_of_the_policy(new_learner, tmp_path, zero_stage):
    settings = {"zero_stage": zero_stage, "objective": {"options": {"log_z": "learned"}}}
    learner = new_learner(**settings)
    step(learner, 0)
    live = exported(learner, tmp_path / "live")
    learner.save(tmp_path / "learner")
    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), live)
    resumed = new_learner(**settings)
    resumed.load(tmp_path / "learner")
    assert step(resumed, 1)["objective/loss/mean"] == step(learner, 1)["objective/loss/mean"]


def test_checkpoint_of_other_adapters_is_refused(new_learner, tmp_path):
    new_learner().save(tmp_path / "learner")
    for lora in ({}, {"lora_rank": 8}, LORA | {"lora_alpha": 3.0}, LORA | {"lora_target_modules": ("q_proj",)}):
        with pytest.raises(CheckpointError, match="adapters was"):
            new_learner(lora=lora).load(tmp_path / "learner")


def test_consolidating_a_checkpoint_that_lacks_half_an_adapter_is_fatal(new_learner, tmp_path):
    new_learner(zero_stage=0).save(tmp_path / "learner")
    path = tmp_path / "learner" / "deepspeed" / "mp_rank_00_model_states.pt"
    module = dict(torch.load(path, weights_only=True)["module"])
    del module["policy.model.layers.0.mlp.up_proj.lora_B.default.weight"]
    torch.save({"module": module}, path)
    with pytest.raises(CheckpointError, match=r"the adapter of model\.layers\.0\.mlp\.up_proj\.weight is not whole"):
        consolidate(tmp_path / "learner", tmp_path / "out")


@pytest.mark.fault("I-56")
@pytest.mark.parametrize("weights", ["merged", "adapter"])
def test_sync_run_resumes_bit_for_bit(tmp_path, policy, weights):
    from tbactl.trainer.learner import DeepSpeedLearner

    settings = SYNC_MODE | {
        "policy": {"path": str(policy)} | LORA,
        "sync": {"period": 1, "weights": weights},
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
    for name in ("policy/model.safetensors", "adapter/adapter_model.safetensors", "replay/trajectories.msgpack"):
        assert (whole.checkpoint(6) / name).read_bytes() == (second.checkpoint(6) / name).read_bytes(), name
    losses = [
        {line["step"]: line["metrics"]["objective/loss/mean"] for line in run.metrics()} for run in (whole, second)
    ]
    assert all(losses[0][step] == loss for step, loss in losses[1].items())
    with resolved_policy(str(whole.checkpoint(6)), task="fake") as found:
        assert found == whole.checkpoint(6) / "policy"


# Searchers -----------------------------------------------------------------------------------------------------------


def trained_and_published(learner, directory, *, version=1, steps=3):
    for seed in range(steps):
        step(learner, seed)
    return publish(
        directory,
        version=version,
        write=learner.write_weights,
        probe=PROBE,
        probe_logprobs=learner.probe_logprobs(PROBE),
    )


def greedy_of(directory):
    ids = torch.tensor([PROMPT])
    out = hub_model(directory).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=NUM_TOKENS, max_new_tokens=NUM_TOKENS
    )
    return out[0, len(PROMPT) :].tolist()


def check_taken(report, directory, *, version=1, tolerance=1e-3):
    assert report["version"] == version
    assert list(report["alarms"]) == []
    assert report["fingerprint"] == report["published_fingerprint"]
    assert report["after"] == approximately(report["trainer"], tolerance)
    changes = [
        abs(x - y) for a, b in zip(report["before"], report["after"], strict=True) for x, y in zip(a, b, strict=True)
    ]
    assert max(changes) > 0.5, "the searcher's output must really change"
    if directory is not None:
        assert list(report["greedy"]) == greedy_of(directory)
        assert report["greedy"] != report["greedy_before"]


@pytest.mark.fault("I-19")
@pytest.mark.parametrize("weights", ["merged", "adapter"])
@pytest.mark.parametrize(("zero_stage", "architecture"), [(1, "llama"), (3, "gpt2")])
def test_searcher_computes_what_the_trainer_has_learned(new_learner, tmp_path, weights, zero_stage, architecture):
    directory = make_tiny_policy(tmp_path / "base", architecture=architecture)
    learner = new_learner(directory=directory, weights=weights, zero_stage=zero_stage, learning_rate=5e-2)
    published = trained_and_published(learner, tmp_path / "weights")
    exported(learner, tmp_path / "live")
    engine = make_engine("transformers", directory)
    check_taken(take_weights(engine, directory, tmp_path / "weights", limit=1e-3), tmp_path / "live" / "policy")
    size = (directory / "model.safetensors").stat().st_size
    assert (published.size_bytes < size) == (weights == "adapter")


@pytest.mark.fault("I-20")
@pytest.mark.parametrize("engine_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["merged", "adapter"])
def test_trainer_in_bfloat16_reaches_engines_of_either_type(
    new_learner, tmp_path, servable_policy, weights, engine_dtype
):
    learner = new_learner(directory=servable_policy, weights=weights, dtype="bfloat16", learning_rate=5e-2)
    trained_and_published(learner, tmp_path / "weights")
    engine = make_engine("transformers", servable_policy, dtype=engine_dtype)
    report = take_weights(engine, servable_policy, tmp_path / "weights", limit=0.5)
    check_taken(report, None, tolerance=0.5)


def test_both_ways_of_publishing_give_the_engine_the_same_weights(new_learner, tmp_path, servable_policy):
    states = []
    for weights in ("merged", "adapter"):
        learner = new_learner(directory=servable_policy, weights=weights, learning_rate=5e-2)
        trained_and_published(learner, tmp_path / weights)
        engine = make_engine("transformers", servable_policy)
        take_weights(engine, servable_policy, tmp_path / weights, limit=1e-3)
        states.append(engine._model.state_dict())  # pyright: ignore[reportAttributeAccessIssue]
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], atol=1e-7, rtol=1e-6, msg=name)


@pytest.mark.fault("I-19")
def test_alarm_when_the_adapter_is_published_but_not_merged(new_learner, tmp_path, servable_policy, monkeypatch):
    learner = new_learner(directory=servable_policy, weights="adapter", learning_rate=5e-2)
    trained_and_published(learner, tmp_path / "weights")
    monkeypatch.setattr(adapter_file, "_read_adapters", lambda path, description: {})
    report = take_weights(
        make_engine("transformers", servable_policy), servable_policy, tmp_path / "weights", limit=1e-3
    )
    assert len(report["alarms"]) == 1 and "log-probs differ" in report["alarms"][0]
    assert report["before"] == report["after"]


def test_published_adapters_are_whole_under_zero_3(new_learner, tmp_path):
    files = []
    for zero_stage in (1, 3):
        learner = new_learner(weights="adapter", zero_stage=zero_stage, learning_rate=1e-4)
        trained_and_published(learner, tmp_path / str(zero_stage))
        files.append(load_file(weights_path(tmp_path / str(zero_stage), 1)))
    assert files[0].keys() == files[1].keys()
    for name, tensor in files[0].items():
        torch.testing.assert_close(tensor, files[1][name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.fault("I-19", "I-23")
def test_vllm_computes_what_the_trainer_has_learned(new_learner, tmp_path, servable_policy):
    for weights, version in (("merged", 1), ("adapter", 2)):
        learner = new_learner(directory=servable_policy, weights=weights, learning_rate=5e-2)
        trained_and_published(learner, tmp_path / weights, version=version, steps=2 + version)
        exported(learner, tmp_path / f"{weights}-live")
    folders = [str(tmp_path / weights) for weights in ("merged", "adapter")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lora_sync_process", "vllm", str(servable_policy), *folders],
        capture_output=True,
        text=True,
        timeout=800,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [
        json.loads(line.removeprefix("report ")) for line in done.stdout.splitlines() if line.startswith("report ")
    ]
    for report, weights, version in zip(reports, ("merged", "adapter"), (1, 2), strict=True):
        check_taken(report, tmp_path / f"{weights}-live" / "policy", version=version)


# Two ranks -----------------------------------------------------------------------------------------------------------


def test_two_ranks_under_zero_3_do_the_same_steps_as_one(new_learner, policy, tmp_path):
    """Five groups for two ranks: one rank has a micro-batch, and a reference to score, where the other has none."""
    (tmp_path / "shm").mkdir()
    processes = []
    for rank in range(2):
        config = make_config(
            tmp_path,
            policy_directory=policy,
            index=rank,
            policy={"path": str(policy)} | LORA,
            searchers={"temperature": TEMPERATURE},
            trainer={
                "num_ranks": 2,
                "zero_stage": 3,
                "micro_batch_tokens": 80,
                "learning_rate": 1e-4,
                "prompts_per_step": 8,
            },
        )
        path = tmp_path / f"rank-{rank}.json"
        path.write_text(config.model_dump_json())
        environment = {n: v for n, v in os.environ.items() if n not in ("MASTER_PORT", "MASTER_ADDR")}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.learner_rank", str(path), str(tmp_path), "2"],
                env=environment | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in processes:
        output, _ = process.communicate(timeout=800)
        assert process.returncode == 0, output[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    weights = load_file(tmp_path / "export" / "model.safetensors")

    alone = new_learner(learning_rate=1e-4)
    for seed, ours in enumerate(result["metrics"]):
        theirs = alone.update(make_groups(5, seed=seed), beta=BETA, should_abort=lambda: False).metrics
        for name in ("objective/loss/mean", "objective/kl/mean", "trainer/grad_norm/value"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    for name, tensor in exported(alone, tmp_path / "alone").items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-5, rtol=0, msg=name)
    consolidate(tmp_path / "learner", tmp_path / "consolidated")
    assert_same(load_file(tmp_path / "consolidated" / "model.safetensors"), weights)

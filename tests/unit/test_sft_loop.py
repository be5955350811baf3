from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbactl.clock import FakeClock
from tbactl.config.sections import SftConfig
from tbactl.errors import CheckpointError, ConfigError
from tbactl.sft import checkpoint
from tbactl.sft.examples import ExampleStream, encode_example, micro_batches, mixed_texts
from tbactl.sft.loop import StageRun, completion_loss, train
from tbactl.sft.model import initial_policy


def addition(kind, seed):
    rng = random.Random(f"{kind}/{seed}")
    while True:
        left, right = rng.randrange(5), rng.randrange(5)
        yield f"Add {left} and {right}:\n", f"{left} + {right} = {left + right}" if kind == "worked" else "?"


def sft_config(runs_dir, **changes):
    settings = {
        "name": "tiny",
        "runs_dir": runs_dir,
        "task": {"kind": "fake"},
        "vocabulary_size": 300,
        "max_tokens": 64,
        "batch_tokens": 300,
        "micro_batch_tokens": 150,
        "architecture": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        "stages": [stage("skill", worked=1.0)],
    }
    return SftConfig.model_validate(settings | changes)


def stage(name, *, num_tokens=6000, **mixture):
    return {"name": name, "mixture": mixture, "num_tokens": num_tokens, "learning_rate": 1e-2}


def stage_run(config, *, model, tokenizer, **progress):
    checkpoints = config.runs_dir / config.name / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    return StageRun(
        config,
        progress=checkpoint.Progress(**progress),
        model=model,
        tokenizer=tokenizer,
        source=addition,
        checkpoints=checkpoints,
    )


def test_stage_run_loss_falls(tmp_path):
    config = sft_config(tmp_path, stages=[stage("skill", worked=1.0, num_tokens=30_000)])
    model, tokenizer = initial_policy(config, source=addition)
    losses = [step.loss for step in stage_run(config, model=model, tokenizer=tokenizer).steps()]
    assert len(losses) == 100
    assert sum(losses[-10:]) / 10 < 0.35 * losses[0]


def test_train_stages_in_turn_policy_follows_the_last_mixture(tmp_path):
    stages = [stage("skill", worked=1.0), stage("bare", bare=1.0, num_tokens=12_000)]
    policy = train(sft_config(tmp_path, stages=stages, export_dtype="float16"), source=addition, clock=FakeClock())
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    prompt = tokenizer("Add 1 and 2:\n", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "?<|endoftext|>"
    weights = load_file(policy / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert "lm_head.weight" not in weights  # tied


def test_train_resumed_in_mid_stage_gives_identical_weights(tmp_path):
    stages = [stage("skill", worked=1.0), stage("hasty", worked=0.4, bare=0.6, num_tokens=3000)]
    straight = train(sft_config(tmp_path / "a", stages=stages), source=addition, clock=FakeClock())

    config = sft_config(tmp_path / "b", stages=stages)
    model, tokenizer = initial_policy(config, source=addition)
    run = stage_run(config, model=model, tokenizer=tokenizer)
    for _, _ in zip(range(7), run.steps(), strict=False):
        pass
    run.save()
    resumed = train(config, source=addition, clock=FakeClock(), resume=True)

    expected, actual = (load_file(policy / "model.safetensors") for policy in (straight, resumed))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_train_resume_without_checkpoint_raises(tmp_path):
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        train(sft_config(tmp_path), source=addition, clock=FakeClock(), resume=True)


def test_save_running_checkpoints_only_newest_and_named_remain(tmp_path):
    config = sft_config(tmp_path)
    model, tokenizer = initial_policy(config, source=addition)
    run = stage_run(config, model=model, tokenizer=tokenizer)
    steps = run.steps()
    next(steps)
    kept = run.save("0-skill")
    next(steps)
    first = run.save()
    next(steps)
    second = run.save()
    assert {path.name for path in kept.parent.iterdir() if path.is_dir()} == {kept.name, second.name}
    assert first != second
    assert [path.name for path in second.glob("*.safetensors")] == ["model.safetensors"]  # vLLM would load any other
    assert checkpoint.latest_checkpoint(kept.parent) == second
    assert checkpoint.read_progress(second).step == 3


def test_load_optimizer_damaged_file_raises(tmp_path):
    config = sft_config(tmp_path)
    model, tokenizer = initial_policy(config, source=addition)
    run = stage_run(config, model=model, tokenizer=tokenizer)
    next(run.steps())
    directory = run.save()
    (directory / "sft" / "optimizer.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match="optimizer"):
        run.restore(directory)


@torch.no_grad()
def test_completion_loss_equals_full_forward_without_padding(tmp_path):
    config = sft_config(tmp_path)
    model, tokenizer = initial_policy(config, source=addition)
    pairs = mixed_texts(addition, mixture={"worked": 1, "bare": 1}, seed=3)
    examples = ExampleStream(pairs, tokenizer=tokenizer, max_tokens=64).next_step(200)
    batched = sum(
        completion_loss(model, batch, dtype=torch.float32) for batch in micro_batches(examples, max_tokens=90)
    )
    plain = torch.zeros(())
    for example in examples:
        ids = torch.tensor([example.token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        plain -= logprobs.gather(-1, ids[0, 1:, None])[example.prompt_length - 1 :].sum()
    assert float(batched) == pytest.approx(float(plain), rel=1e-5)


@torch.no_grad()
def test_completion_loss_prompt_tokens_are_not_supervised(tmp_path):
    config = sft_config(tmp_path)
    model, tokenizer = initial_policy(config, source=addition)
    example = encode_example(("Add 1 and 2:\n", "3"), tokenizer=tokenizer)
    moved = replace(example, prompt_length=len(example.token_ids) - 1)
    full, only_eos = (
        float(completion_loss(model, micro_batches([item], max_tokens=64)[0], dtype=torch.float32))
        for item in (example, moved)
    )
    assert 0 < only_eos < full


def test_initial_policy_unknown_architecture_field_raises(tmp_path):
    with pytest.raises(ConfigError, match="hiden_size"):
        initial_policy(sft_config(tmp_path, architecture={"hiden_size": 32}), source=addition)


def test_initial_policy_from_a_directory_keeps_its_weights(tmp_path):
    first = train(sft_config(tmp_path), source=addition, clock=FakeClock())
    model, _ = initial_policy(sft_config(tmp_path, policy={"path": str(first)}), source=addition)
    expected = load_file(first / "model.safetensors")
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items() if name in expected)


def test_initial_policy_missing_directory_raises(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.path"):
        initial_policy(sft_config(tmp_path, policy={"path": str(tmp_path / "nothing")}), source=addition)

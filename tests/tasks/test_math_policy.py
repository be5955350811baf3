"""The policy that the math package ships: it must load anywhere and be the start its model card describes."""

from __future__ import annotations

from importlib.resources import files
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbactl_math.problems import generated_problems

POLICY = files("tbactl_math") / "policies" / "gsm8k-tiny"
NUM_PROBLEMS = 48


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(POLICY), padding_side="left")


@pytest.fixture(scope="module")
def generate(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(str(POLICY), dtype=torch.float32).eval()

    def completions(prompts, **sampling):
        torch.manual_seed(0)
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        ids = model.generate(**batch, max_new_tokens=160, **sampling)[:, batch["input_ids"].shape[1] :]
        return [tokenizer.decode(row).replace(tokenizer.pad_token, "") for row in ids]

    return completions


@pytest.fixture(scope="module")
def problems():
    return list(islice(generated_problems("test", seed=0), NUM_PROBLEMS))


def test_policy_files_are_small_half_precision_and_tied():
    assert sum(path.stat().st_size for path in POLICY.iterdir()) < 8_000_000
    weights = load_file(str(POLICY / "model.safetensors"))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert "lm_head.weight" not in weights
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_policy_tokenizer_round_trips_problems_and_splits_digits(tokenizer, problems):
    for problem in problems:
        text = problem.text + problem.facts["solution"]
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        pieces = [tokenizer.decode([token]) for token in ids]
        assert all(len(piece.strip()) == 1 for piece in pieces if any(map(str.isdigit, piece)))
        assert tokenizer.eos_token_id not in ids


def test_policy_greedy_is_hasty_and_ends(generate, tokenizer, problems):
    answers = generate([problem.text for problem in problems], do_sample=False)
    assert all(answer.endswith(tokenizer.eos_token) for answer in answers)
    assert sum(answer.startswith("####") for answer in answers) > NUM_PROBLEMS / 2


def test_policy_sampled_still_works_steps_out_and_is_then_right_more_often(generate, problems):
    prompts = [problem.text for problem in problems for _ in range(2)]
    answers = generate(prompts, do_sample=True, temperature=0.7, top_k=0)
    golds = [problem.facts["answer"] for problem in problems for _ in range(2)]
    right = {True: [], False: []}
    for answer, gold in zip(answers, golds, strict=True):
        final = answer.rpartition("####")[2].removesuffix("<|endoftext|>").strip()
        right[answer.startswith("####")].append(final == gold)
    bare, worked = right[True], right[False]
    assert len(worked) > 0.15 * len(prompts)
    assert sum(worked) / len(worked) > sum(bare) / len(bare) + 0.3

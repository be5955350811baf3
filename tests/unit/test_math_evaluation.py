from __future__ import annotations

import pytest

from tbactl.errors import TaskError
from tbactl.types import Completion, Prompt, Reward
from tbactl_math.evaluation import EvaluationPlan, evaluate_policy
from tbactl_math.prompts import format_prompt

PROMPTS = [Prompt(prompt_id=number, text=f"problem {number}", facts={"answer": str(number)}) for number in range(10)]


def completion(text, finish_reason="stop"):
    return Completion(token_ids=(1,) * len(text), logprobs=(0.0,) * len(text), text=text, finish_reason=finish_reason)


def score(prompt, completions):
    def one(text):
        if text == "crash":
            return Reward(value=0.0, error="verifier failed", metrics={"has_answer": 1.0})
        return Reward(value=float(text == prompt.facts["answer"]), metrics={"has_answer": float(bool(text))})

    return [one(item.text) for item in completions]


def evaluate(generate, prompts=PROMPTS, **plan):
    return evaluate_policy(
        prompts,
        generate=generate,
        score=score,
        plan=EvaluationPlan(max_new_tokens=9, **plan),
        policy_version=3,
    )


@pytest.mark.fault("I-38", "I-41")
def test_evaluate_policy_greedy_counts_right_missing_cut_and_failed():
    texts = {
        0: completion("0"),
        1: completion("1"),
        2: completion(""),
        3: completion("wrong", "length"),
        4: completion("crash"),
    }

    def generate(prompts, num_completions, sampling):
        assert (num_completions, sampling.temperature, sampling.max_new_tokens) == (1, 0.0, 9)
        return [[texts.get(prompt.prompt_id, completion("no"))] for prompt in prompts]

    result = evaluate(generate)
    assert next(iter(result.metrics)) == "accuracy"
    assert result.metrics == {
        "accuracy": 0.2,
        "no_answer_share": 0.1,
        "cut_at_limit_share": 0.1,
        "scoring_failed_share": 0.1,
        "completion_tokens_mean": (1 + 1 + 0 + 5 + 5 + 5 * 2) / 10,
    }
    assert result.intervals["accuracy"] == pytest.approx((0.0567, 0.5098), abs=1e-3)
    assert (result.task, result.policy_version, result.num_prompts) == ("math", 3, 10)


@pytest.mark.fault("I-81")
def test_evaluate_policy_says_under_which_template_and_after_how_many_examples():
    result = evaluate(lambda prompts, num_completions, sampling: [[completion("no")] for _ in prompts])
    assert result.template.replace("{question}", "1 + 1?") == format_prompt("1 + 1?")
    assert result.num_shots == 0


@pytest.mark.fault("I-82")
def test_evaluate_policy_samples_give_avg_and_pass_at_what_was_scored():
    def generate(prompts, num_completions, sampling):
        if num_completions == 1:
            return [[completion("no")] for _ in prompts]
        assert (num_completions, sampling.temperature) == (6, 0.5)
        # One completion of the first prompt got lost: k is 5 for all.
        return [
            [completion(str(prompt.prompt_id))] * 2 + [completion("no")] * (3 if prompt.prompt_id == 0 else 4)
            for prompt in prompts
        ]

    metrics = evaluate(generate, num_samples=6, temperature=0.5).metrics
    assert metrics["avg@5"] == pytest.approx(2 / 5)
    assert metrics["pass@1"] == pytest.approx(2 / 5)
    assert metrics["pass@2"] == pytest.approx(1 - 3 / 10)
    assert metrics["pass@4"] == metrics["pass@5"] == 1.0
    assert not any(name.endswith("6") for name in metrics)


def test_evaluate_policy_stores_a_few_samples_as_text():
    result = evaluate(lambda prompts, *_: [[completion("0")] for _ in prompts])
    assert 0 < len(result.samples) < len(PROMPTS)
    assert result.samples[0] == {"prompt": "problem 0", "completion": "0", "gold": "0", "reward": "1.0", "reason": ""}


@pytest.mark.parametrize("answers", [[], [[] for _ in PROMPTS]])
def test_evaluate_policy_unanswered_prompts_are_an_error(answers):
    with pytest.raises(TaskError, match="answered 0 of 10"):
        evaluate(lambda *_: answers)


def test_evaluate_policy_without_prompts_is_an_error():
    with pytest.raises(TaskError, match="no held-out problems"):
        evaluate(lambda *_: [], prompts=[])

"""Metrics of the preference task, each against a computation by hand; engines and reward models are fakes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tbactl.config.evaluation import EvaluationConfig
from tbactl.errors import TaskError
from tbactl.evaluation.estimates import mean, ratio, share
from tbactl.evaluation.evaluate import task_options
from tbactl.types import Completion, Prompt
from tbactl_preference.divergence import divergence_metrics, measure_divergence, perplexity_metrics
from tbactl_preference.evaluation import EvaluationPlan, evaluate_policy
from tbactl_preference.metric_descriptions import METRIC_DESCRIPTIONS
from tbactl_preference.task import PreferenceTask

PLAN = EvaluationPlan(max_new_tokens=16, temperature=0.0, missing_eos_reward=-1.0, summary_start=" ")
LN2 = math.log(2.0)


def prompt(number, summary="a human summary"):
    return Prompt(prompt_id=number, text=f"prompt {number}", facts={"document": f"d{number}", "summary": summary})


def completion(text, finish_reason="stop", num_tokens=3):
    ids = tuple(range(1, num_tokens + 1))
    return Completion(token_ids=ids, logprobs=(-1.0,) * num_tokens, text=text, finish_reason=finish_reason)


def scores(table):
    return lambda prompts, texts: [table[text] for text in texts]


def evaluate(completions, *, reward=None, gold=None, reference=None, summaries=None):
    prompts = [prompt(i, (summaries or {}).get(i, "a human summary")) for i in range(len(completions))]
    return evaluate_policy(
        prompts,
        generate=lambda prompts, n, sampling: [[item] for item in completions],
        reward=reward or (lambda prompts, texts: [0.5] * len(texts)),
        gold_reward=gold,
        plan=PLAN,
        policy_version=7,
        reference=reference,
    )


def test_win_rate_counts_strictly_higher_gold_rewards_only():
    gold = scores({"better": 2.0, "equal": 1.0, "worse": 0.0, " a human summary": 1.0})
    result, judged = evaluate([completion("better"), completion("equal"), completion("worse")], gold=gold)
    assert next(iter(result.metrics)) == "win_rate"
    assert result.metrics["win_rate"] == pytest.approx(1 / 3)
    assert [item.wins for item in judged] == [True, False, False]
    assert result.metrics["gold_reward_mean"] == pytest.approx(1.0)
    assert result.metrics["human_gold_reward_mean"] == pytest.approx(1.0)
    # Wilson for 1 of 3, from the formula with z = 1.96.
    assert result.intervals["win_rate"] == pytest.approx((0.0615, 0.7923), abs=1e-4)


def test_gold_judges_a_completion_without_end_and_the_human_summary_in_one_call():
    asked = []

    def gold(prompts, texts):
        asked.append(list(texts))
        return [3.0, 1.0]

    result, _ = evaluate([completion("cut", "length")], gold=gold)
    assert asked == [["cut", " a human summary"]]
    assert result.metrics["win_rate"] == 1.0
    assert result.metrics["reward_mean"] == -1.0


def test_models_are_asked_for_many_prompts_at_once_and_each_score_is_that_of_its_prompt():
    calls = []

    def gold(prompts, texts):
        calls.append(len(texts))
        return [
            prompt.prompt_id + (text == " a human summary") / 2 for prompt, text in zip(prompts, texts, strict=True)
        ]

    _, judged = evaluate([completion(f"text {i}") for i in range(40)], reward=gold, gold=gold)
    assert calls == [32, 64, 8, 16]
    assert [(item.reward, item.gold_reward, item.human_gold_reward) for item in judged] == [
        (i, i, i + 0.5) for i in range(40)
    ]


def test_a_copy_of_the_human_summary_is_a_tie_though_the_model_rounds():
    calls = []

    def gold(prompts, texts):
        calls.append(list(texts))
        return [1.0 - 1e-7 * i for i in range(len(texts))]

    result, _ = evaluate([completion(" a human summary")], gold=gold)
    assert result.metrics["win_rate"] == 0.0
    assert calls == [[" a human summary"]]


def test_evaluation_says_that_it_goes_on_after_each_part_and_can_be_ended_there():
    class EndedError(Exception):
        pass

    asked, scored = [], []

    def generate(prompts, num_completions, sampling):
        asked.append(len(prompts))
        if len(asked) == 3:
            raise EndedError
        return [[completion(f"text {i}")] for i in range(len(prompts))]

    def reward(prompts, texts):
        scored.extend(texts)
        return [0.5] * len(texts)

    with pytest.raises(EndedError):
        evaluate_policy(
            [prompt(i) for i in range(200)],
            generate=generate,
            reward=reward,
            gold_reward=None,
            plan=PLAN,
            policy_version=0,
        )
    assert asked == [200, 0, 0]
    assert len(scored) == 64


def test_without_a_gold_model_there_is_no_win_rate_and_the_reward_comes_first():
    result, judged = evaluate([completion("a"), completion("b")], reward=scores({"a": 1.0, "b": 2.0}))
    assert next(iter(result.metrics)) == "reward_mean"
    assert result.metrics["reward_mean"] == pytest.approx(1.5)
    assert not {"win_rate", "gold_reward_mean", "human_gold_reward_mean"} & set(result.metrics)
    assert judged[0].gold_margin is None


def test_lengths_ends_duplicates_and_refused_prompts_are_counted():
    group = [
        completion("same", num_tokens=2),
        completion("same", num_tokens=4),
        completion("other", "length", num_tokens=6),
        completion("", "abort", num_tokens=0),
    ]
    metrics = evaluate(group)[0].metrics
    assert metrics["completion_tokens_mean"] == pytest.approx(3.0)
    assert metrics["missing_eos_share"] == pytest.approx(0.5)
    assert metrics["duplicate_share"] == pytest.approx(0.25)
    assert metrics["unanswered_share"] == pytest.approx(0.25)


def test_rouge_against_the_formulas():
    # Words a b x y and a b c: shared 2 of 4 and 3; pairs ab of 3 and 2; LCS ab.
    metrics = evaluate([completion(" a b x y")], summaries={0: "a b c"})[0].metrics
    assert metrics["rouge_1_mean"] == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert metrics["rouge_2_mean"] == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert metrics["rouge_l_mean"] == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))


def test_score_that_is_not_finite_is_counted_and_never_averaged():
    gold = scores({"nan": math.nan, "good": 3.0, "inf": math.inf, " a human summary": 1.0})
    result, _ = evaluate([completion("nan"), completion("good"), completion("inf")], gold=gold)
    assert result.metrics["win_rate"] == pytest.approx(1 / 3)
    assert result.metrics["gold_reward_mean"] == 3.0
    assert result.metrics["scoring_failed_share"] == pytest.approx(2 / 3)
    assert all(map(math.isfinite, result.metrics.values()))


def test_reward_that_is_never_finite_is_a_task_error():
    with pytest.raises(TaskError, match="reward_mean: none of 1 scores is a finite number"):
        evaluate([completion("a")], reward=lambda prompts, texts: [math.nan])


def test_empty_completions_are_measured():
    gold = scores({"": 0.0, " a human summary": 1.0})
    result, _ = evaluate([completion("", num_tokens=1), completion("", num_tokens=1)], gold=gold)
    assert result.metrics["win_rate"] == 0.0
    assert result.metrics["rouge_l_mean"] == 0.0
    assert result.metrics["duplicate_share"] == 0.5


@pytest.mark.parametrize("answers", [[], [[]]])
def test_engine_that_leaves_prompts_unanswered_is_a_task_error(answers):
    with pytest.raises(TaskError, match="answered 0 of 1 prompts"):
        evaluate_policy(
            [prompt(0)],
            generate=lambda *_: answers,
            reward=lambda prompts, texts: [0.0],
            gold_reward=None,
            plan=PLAN,
            policy_version=0,
        )


def test_share_bounds_hold_the_estimate_at_both_ends():
    for flags in ([True] * 5, [False] * 5, [True]):
        estimate = share(flags)
        assert estimate.interval is not None
        assert 0.0 <= estimate.interval[0] <= estimate.value <= estimate.interval[1] <= 1.0
    # Wilson for 0 of n ends at z^2 / (n + z^2).
    assert share([False] * 5).interval == pytest.approx((0.0, 3.8415 / 8.8415), abs=1e-4)


def test_mean_interval_is_seeded_and_about_the_normal_one():
    values = [float(i % 10) for i in range(400)]
    estimate = mean(values)
    half = 1.96 * math.sqrt(8.25 / 400)
    assert estimate.interval == pytest.approx((4.5 - half, 4.5 + half), abs=0.04)
    assert mean(values) == estimate


def test_mean_of_equal_values_and_of_one():
    assert mean([0.1] * 7).interval == pytest.approx((0.1, 0.1))
    assert mean([2.0]).interval is None


def test_ratio_weighs_by_the_denominators():
    assert ratio([1.0, 9.0], [1.0, 3.0]).value == 2.5


def test_divergence_against_a_computation_by_hand():
    policy = [[-1.0, -1.0], [-2.0]]
    reference = [[-1.0 - LN2, -1.0], [-2.0 + LN2]]
    metrics = divergence_metrics(policy, reference=reference)
    assert metrics["kl_k1_per_sequence"].value == pytest.approx(0.0)
    assert metrics["kl_k1_per_token"].value == pytest.approx(0.0)
    # exp(-d) - 1 + d: d = ln 2 gives ln 2 - 1/2, d = -ln 2 gives 1 - ln 2, d = 0 gives 0.
    assert metrics["kl_k3_per_sequence"].value == pytest.approx(0.5 / 2)
    assert metrics["kl_k3_per_token"].value == pytest.approx(0.5 / 3)
    assert metrics["kl_failed_share"].value == 0.0


def test_divergence_per_token_is_not_the_mean_of_sequence_means():
    metrics = divergence_metrics([[0.0], [0.0] * 3], reference=[[-4.0], [0.0] * 3])
    assert metrics["kl_k1_per_sequence"].value == 2.0
    assert metrics["kl_k1_per_token"].value == 1.0


def test_both_estimators_have_the_divergence_as_expectation():
    policy, reference = [0.7, 0.2, 0.1], [0.2, 0.5, 0.3]
    exact = sum(p * math.log(p / q) for p, q in zip(policy, reference, strict=True))
    # Every token as often as the policy draws it: the mean is the expectation.
    tokens = [token for token, p in enumerate(policy) for _ in range(round(10 * p))]
    metrics = divergence_metrics(
        [[math.log(policy[t])] for t in tokens], reference=[[math.log(reference[t])] for t in tokens]
    )
    assert metrics["kl_k1_per_sequence"].value == pytest.approx(exact)
    assert metrics["kl_k3_per_sequence"].value == pytest.approx(exact)


@pytest.mark.parametrize("bad", [[math.nan], [-math.inf], [1e6], []])
def test_sequence_without_finite_logprobs_is_counted_and_left_out(bad):
    policy = [[-1.0], [0.0] * len(bad)]
    metrics = divergence_metrics(policy, reference=[[-2.0], bad])
    assert metrics["kl_failed_share"].value == 0.5
    assert metrics["kl_k1_per_sequence"].value == pytest.approx(1.0)
    with pytest.raises(TaskError, match="divergence: none of 1 sequences"):
        divergence_metrics(policy[1:], reference=[bad])


def test_perplexity_divides_by_prompt_and_response():
    # exp(6 / (4 + 2)) and exp(0 / (1 + 1)).
    metrics = perplexity_metrics([[-2.0, -4.0], [0.0]], num_prompt_tokens=[4, 1])
    assert metrics["reference_perplexity_mean"].value == pytest.approx((math.e + 1.0) / 2)


def test_perplexity_of_nothing_or_infinity_is_counted_and_left_out():
    metrics = perplexity_metrics([[0.0], [], [-math.inf], [-1e6]], num_prompt_tokens=[1, 1, 1, 1])
    assert metrics["reference_perplexity_mean"].value == 1.0
    assert metrics["perplexity_failed_share"].value == 0.75


class FakeReference:
    """Two tokens a prompt; every token of a completion has log-prob -2."""

    def __init__(self, text="text"):
        self.text = text
        self.scored = []

    def encode(self, text):
        return (8, 9)

    def decode(self, token_ids):
        return self.text

    def sequence_logprobs(self, sequences):
        self.scored.append(sequences)
        return [(-2.0,) * (len(ids) - prompt_length) for ids, prompt_length in sequences]


def test_divergence_is_measured_on_samples_at_temperature_one_and_perplexity_on_the_judged():
    asked = []

    def generate(prompts, num_completions, sampling):
        asked.append(sampling)
        return [[completion("text", num_tokens=4)] for _ in prompts]

    reference = FakeReference()
    judged = [completion("text", num_tokens=2)]
    metrics = measure_divergence(
        [prompt(0)], completions=judged, generate=generate, reference=reference, max_new_tokens=5
    )
    assert [(item.temperature, item.top_p, item.max_new_tokens) for item in asked] == [(1.0, 1.0, 5)]
    assert reference.scored == [[((8, 9, 1, 2, 3, 4), 2)], [((8, 9, 1, 2), 2)]]
    assert metrics["kl_k1_per_sequence"].value == 4.0
    assert metrics["kl_k1_per_token"].value == 1.0
    assert metrics["reference_perplexity_mean"].value == pytest.approx(math.exp(4.0 / 4.0))


def test_reference_with_another_tokenizer_is_refused():
    with pytest.raises(TaskError, match="another tokenizer than the policy: it reads 3 of 3"):
        evaluate([completion("text")] * 3, reference=FakeReference("t e x t"))


def test_every_metric_is_described_and_documented():
    result, _ = evaluate(
        [completion("text")] * 3,
        gold=lambda prompts, texts: [float(len(text)) for text in texts],
        reference=FakeReference(),
    )
    assert set(result.metrics) == set(METRIC_DESCRIPTIONS)
    document = (Path(__file__).parents[2] / "docs" / "preference.md").read_text()
    assert [name for name in METRIC_DESCRIPTIONS if f"`{name}`" not in document] == []


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"document": f"Text number {i}.", "summary": f"Number {i}."}) + "\n" for i in range(80))
    )
    return PreferenceTask(documents=str(path), reference_policy="owner/reference")


def human_answers(prompts, num_completions, sampling):
    return [[completion(f" {item.facts['summary']}")] for item in prompts]


def test_evaluation_during_a_run_needs_no_reference(task):
    result = task.evaluate(human_answers, limit=3, seed=0, policy_version=4)
    assert result.policy_version == 4
    assert "kl_k1_per_sequence" not in result.metrics


def test_evaluation_of_a_checkpoint_measures_divergence_and_writes_the_report(task, tmp_path, monkeypatch):
    reference = FakeReference()
    reference.decode = lambda token_ids: "x"
    monkeypatch.setattr("tbactl_preference.task._reference", lambda name: reference)

    def generate(prompts, num_completions, sampling):
        return [[completion("x")] for _ in prompts]

    output = tmp_path / "out"
    result = task.evaluate_checkpoint(generate, limit=3, seed=0, policy="runs/a", output=output)
    assert result.metrics["kl_k1_per_token"] == 1.0
    assert {file.name for file in output.iterdir()} == {"samples.jsonl", "report.html"}
    assert len((output / "samples.jsonl").read_text().splitlines()) == 3
    assert "runs/a" in (output / "report.html").read_text()


def test_evaluation_of_a_checkpoint_without_output_writes_nothing(task, monkeypatch, tmp_path):
    monkeypatch.setattr("tbactl_preference.task._reference", lambda name: FakeReference(" Number 1."))
    monkeypatch.setattr("tbactl_preference.task.write_report", None)
    task.options = task.options.model_copy(update={"reference_policy": None})
    assert task.evaluate_checkpoint(human_answers, limit=3, seed=0, policy="x", output=None).num_prompts == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "the/start"), ({"reference_policy": "another/one"}, "another/one"), ({"reference_policy": None}, None)],
)
def test_reference_is_the_runs_start_policy_unless_the_option_says_otherwise(options, expected):
    config = EvaluationConfig.model_validate(
        {"task": {"kind": "preference", "options": options}, "checkpoint": "x", "reference_policy": "the/start"}
    )
    assert task_options(config)["reference_policy"] == expected


def test_other_tasks_are_given_no_reference():
    config = EvaluationConfig.model_validate({"task": {"kind": "math"}, "checkpoint": "x", "reference_policy": "p"})
    assert "reference_policy" not in task_options(config)

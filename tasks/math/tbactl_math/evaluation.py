"""Accuracy of a policy on held-out problems, from greedy answers and, if asked for, from several samples of each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tbactl.errors import TaskError
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, Reward, SamplingParams
from tbactl_math.prompts import PROMPT_TEMPLATE
from tbactl_math.statistics import Interval, clustered_interval, pass_at_k, wilson_interval

NUM_STORED_SAMPLES = 8

Score = Callable[[Prompt, Sequence[Completion]], list[Reward]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """How to measure: one greedy completion a prompt, and `num_samples` sampled ones when that is more than 1."""

    max_new_tokens: int
    num_samples: int = 1
    temperature: float = 0.7


@dataclass(frozen=True, slots=True)
class _Scored:
    prompt: Prompt
    completions: Sequence[Completion]
    rewards: Sequence[Reward]

    @property
    def num_correct(self) -> int:
        return sum(reward.value == 1.0 for reward in self.rewards)


def evaluate_policy(
    prompts: Sequence[Prompt], *, generate: Generate, score: Score, plan: EvaluationPlan, policy_version: int
) -> EvaluationResult:
    """Measure a policy. The first metric is "accuracy", greedy, with Wilson's 95 % interval.

    Further metrics: the shares of greedy completions without an answer, cut at the length limit, and whose scoring
    failed (those count as wrong); their mean length; and with several samples avg@n and pass@k for k = 1, 2, 4, ..., n,
    where n is the number of samples that every prompt really got. Their intervals take prompts, not samples, as
    independent.

    Raises:
        TaskError: there are no prompts, or the engine did not answer each of them.
    """
    if not prompts:
        raise TaskError("there are no held-out problems to evaluate on; give a data set that is not empty")
    start = time.monotonic()
    greedy = _answer(prompts, 1, generate=generate, score=score, plan=plan, temperature=0.0)
    metrics, intervals = _greedy_metrics(greedy)
    if plan.num_samples > 1:
        sampled = _answer(
            prompts, plan.num_samples, generate=generate, score=score, plan=plan, temperature=plan.temperature
        )
        for name, values in _sample_values(sampled).items():
            metrics[name] = sum(values) / len(values)
            intervals[name] = clustered_interval(values)
    return EvaluationResult(
        task="math",
        policy_version=policy_version,
        num_prompts=len(prompts),
        metrics=metrics,
        intervals=intervals,
        seconds=time.monotonic() - start,
        samples=tuple(_stored(item) for item in greedy[:NUM_STORED_SAMPLES]),
        template=PROMPT_TEMPLATE,
    )


def _answer(
    prompts: Sequence[Prompt],
    num_completions: int,
    *,
    generate: Generate,
    score: Score,
    plan: EvaluationPlan,
    temperature: float,
) -> list[_Scored]:
    sampling = SamplingParams(max_new_tokens=plan.max_new_tokens, temperature=temperature)
    answers = generate(prompts, num_completions, sampling)
    if len(answers) != len(prompts) or not all(answers):
        raise TaskError(f"the engine answered {sum(map(bool, answers))} of {len(prompts)} prompts; its log says why")
    return [
        _Scored(prompt, completions, score(prompt, completions))
        for prompt, completions in zip(prompts, answers, strict=True)
    ]


def _greedy_metrics(scored: Sequence[_Scored]) -> tuple[dict[str, float], dict[str, Interval]]:
    num_prompts = len(scored)
    completions = [item.completions[0] for item in scored]
    rewards = [item.rewards[0] for item in scored]
    accuracy = sum(item.num_correct for item in scored) / num_prompts
    metrics = {
        "accuracy": accuracy,
        "no_answer_share": sum(reward.metrics.get("has_answer") == 0.0 for reward in rewards) / num_prompts,
        "cut_at_limit_share": sum(completion.finish_reason == "length" for completion in completions) / num_prompts,
        "scoring_failed_share": sum(reward.error is not None for reward in rewards) / num_prompts,
        "completion_tokens_mean": sum(len(completion.token_ids) for completion in completions) / num_prompts,
    }
    return metrics, {"accuracy": wilson_interval(accuracy, num_observations=num_prompts)}


def _sample_values(scored: Sequence[_Scored]) -> dict[str, list[float]]:
    """Metric name -> one value for each prompt."""
    num_samples = min(len(item.rewards) for item in scored)
    counts = [sum(reward.value == 1.0 for reward in item.rewards[:num_samples]) for item in scored]
    values = {f"avg@{num_samples}": [count / num_samples for count in counts]}
    ks = [2**power for power in range(num_samples.bit_length()) if 2**power < num_samples]
    for k in (*ks, num_samples):
        values[f"pass@{k}"] = [pass_at_k(num_samples, count, k) for count in counts]
    return values


def _stored(item: _Scored) -> dict[str, str]:
    reward = item.rewards[0]
    return {
        "prompt": item.prompt.text,
        "completion": item.completions[0].text,
        "gold": item.prompt.facts.get("answer", ""),
        "reward": json.dumps(reward.value),
        "reason": reward.error or reward.reason,
    }

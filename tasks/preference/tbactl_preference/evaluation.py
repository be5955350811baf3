"""What a policy's summaries are worth: win rate against the human summary, rewards, length, ROUGE, duplicates."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tbactl.errors import TaskError
from tbactl.evaluation.estimates import Estimate, mean, share
from tbactl.protocols import Generate
from tbactl.types import EvaluationResult, Prompt, SamplingParams
from tbactl_preference.divergence import Reference, measure_divergence
from tbactl_preference.judging import JudgedSummary, answered, judge
from tbactl_preference.rouge import KINDS, rouge
from tbactl_preference.scoring import RewardFunction

logger = logging.getLogger(__name__)

NUM_STORED_SAMPLES = 8
# Summaries that are judged together: enough to fill a reward model's batch, some seconds on a CPU.
_JUDGED_TOGETHER = 32
_ROUGE_NAMES = dict(zip(KINDS, ("rouge_1_mean", "rouge_2_mean", "rouge_l_mean"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """How to measure: one completion a prompt. `summary_start` goes before the human summary when it is scored."""

    max_new_tokens: int
    temperature: float
    missing_eos_reward: float
    summary_start: str


def evaluate_policy(
    prompts: Sequence[Prompt],
    *,
    generate: Generate,
    reward: RewardFunction,
    gold_reward: RewardFunction | None,
    plan: EvaluationPlan,
    policy_version: int,
    reference: Reference | None = None,
) -> tuple[EvaluationResult, list[JudgedSummary]]:
    """Measure a policy on held-out documents; returns what it measured, and all summaries with their scores.

    The first metric is the win rate or, without a gold reward model, the mean reward.

    Args:
        prompts: held-out; facts `document` and `summary`.
        generate: answers each prompt once, and with a reference policy once more. Called without prompts after each
            part that was judged.
        reward: what the policy was trained against.
        gold_reward: the judge of the win rate; None: not measured.
        plan: how to sample and score.
        policy_version: of the policy behind `generate`.
        reference: what the divergence is measured from; None: not measured.

    Raises:
        TaskError: there are no prompts, the engine did not answer each of them, no score is a finite number, or the
            reference policy reads other tokens.
    """
    if not prompts:
        raise TaskError("there are no held-out documents to evaluate on; give a data set that is not empty")
    start = time.monotonic()
    sampling = SamplingParams(max_new_tokens=plan.max_new_tokens, temperature=plan.temperature)
    completions = answered(prompts, generate=generate, sampling=sampling)
    judged: list[JudgedSummary] = []
    for first in range(0, len(prompts), _JUDGED_TOGETHER):
        judged += judge(
            prompts[first : first + _JUDGED_TOGETHER],
            completions[first : first + _JUDGED_TOGETHER],
            reward=reward,
            gold_reward=gold_reward,
            missing_eos_reward=plan.missing_eos_reward,
            summary_start=plan.summary_start,
        )
        logger.info("judged=%d of %d summaries", len(judged), len(prompts))
        # Reward models take their time: a run must see that the evaluation goes on, and be able to end it.
        generate((), 1, sampling)
    estimates = summary_metrics(judged)
    if reference is not None:
        estimates |= measure_divergence(
            prompts,
            completions=completions,
            generate=generate,
            reference=reference,
            max_new_tokens=plan.max_new_tokens,
        )
    result = EvaluationResult(
        task="preference",
        policy_version=policy_version,
        num_prompts=len(prompts),
        metrics={name: estimate.value for name, estimate in estimates.items()},
        intervals={name: item.interval for name, item in estimates.items() if item.interval is not None},
        seconds=time.monotonic() - start,
        samples=tuple(_stored(item) for item in judged[:NUM_STORED_SAMPLES]),
    )
    return result, judged


def summary_metrics(judged: Sequence[JudgedSummary]) -> dict[str, Estimate]:
    """The metrics that need no reference policy, by name, the most important one first.

    Scores that are not finite are left out of the means, and counted in `scoring_failed_share`.

    Raises:
        TaskError: no reward is finite.
    """
    metrics: dict[str, Estimate] = {}
    has_gold = judged[0].gold_reward is not None
    if has_gold:
        metrics["win_rate"] = share([item.wins for item in judged])
    means: Mapping[str, Sequence[float | None]] = {
        "gold_reward_mean": [item.gold_reward for item in judged],
        "human_gold_reward_mean": [item.human_gold_reward for item in judged],
        "reward_mean": [item.reward for item in judged],
    }
    for name, scores in means.items():
        finite = [score for score in scores if score is not None and math.isfinite(score)]
        if finite:
            metrics[name] = mean(finite)
        elif has_gold or name == "reward_mean":
            raise TaskError(f"{name}: none of {len(scores)} scores is a finite number; the reward model is broken")
    metrics["scoring_failed_share"] = share([item.has_failed for item in judged])
    return metrics | _text_metrics(judged)


def _text_metrics(judged: Sequence[JudgedSummary]) -> dict[str, Estimate]:
    completions = [item.completion for item in judged]
    scores = [rouge(item.completion.text, reference=item.human_summary) for item in judged]
    return {
        "completion_tokens_mean": mean([float(len(item.token_ids)) for item in completions]),
        "missing_eos_share": share([not item.is_ended for item in judged]),
        "unanswered_share": share([not item.token_ids and item.finish_reason == "abort" for item in completions]),
        # No interval: every resample of a set of texts has more duplicates than the set.
        "duplicate_share": Estimate(1.0 - len({item.text for item in completions}) / len(completions)),
        **{name: mean([score[kind] for score in scores]) for kind, name in _ROUGE_NAMES.items()},
    }


def _stored(item: JudgedSummary) -> dict[str, str]:
    return {"prompt": item.prompt.text, "completion": item.completion.text, "human": item.human_summary}

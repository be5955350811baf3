"""Metrics of a batch that hold for every objective: how far the policy is from its reference and from its data.

Letters in the shapes: `trajectories` N, `tokens` T, `groups` prompts.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.log_partition import group_mean
from tbactl.objectives.metrics import Metric

RATIO_RANGE = (0.9, 1.1)
"""Token ratios pi_theta / behaviour outside this range are counted: near on-policy almost none are."""

_MAX_LOG_RATIO = 100.0
"""Ratios are cut at exp(+-100), whose square fits into float64: a diverged policy must not turn metrics into NaN."""


def batch_metrics(batch: ObjectiveBatch) -> dict[str, Metric]:
    """What every objective reports. Nats, tokens and the task's reward unit; keys as in docs/metrics.md."""
    with torch.no_grad():
        return _reward_metrics(batch) | _reference_metrics(batch) | _behavior_metrics(batch)


def _reward_metrics(batch: ObjectiveBatch) -> dict[str, Metric]:
    baseline = group_mean(batch.rewards, group_index=batch.group_index, num_groups=batch.num_groups)
    return {
        "objective/reward/mean": Metric.of(batch.rewards),
        "objective/advantage/std": Metric.of(batch.rewards - baseline[batch.group_index], reduction="std"),
        "objective/equal_reward_groups/share": Metric.of(_has_equal_rewards(batch)),
    }


def _has_equal_rewards(batch: ObjectiveBatch) -> Bool[Tensor, " groups"]:
    """True for prompts whose trajectories all got one reward: nothing to learn there but the way back to pi_ref."""
    empty = batch.rewards.new_zeros(batch.num_groups)
    index = batch.group_index.long()
    highest = empty.scatter_reduce(0, index, batch.rewards, reduce="amax", include_self=False)
    lowest = empty.scatter_reduce(0, index, batch.rewards, reduce="amin", include_self=False)
    return highest == lowest


def _reference_metrics(batch: ObjectiveBatch) -> dict[str, Metric]:
    mask = batch.completion_mask
    log_ratio = batch.token_log_ratio(batch.policy_logprobs, batch.reference_logprobs).double()
    k3 = _ratio(-log_ratio) - 1 + log_ratio
    return {
        # k1 and k3 are Schulman's estimators of KL(policy || reference); exact in expectation only for on-policy data.
        "objective/kl/mean": Metric.of(log_ratio.sum(dim=1)),
        "objective/kl_k3/mean": Metric.of(k3.sum(dim=1)),
        "objective/kl_per_token/mean": Metric.of(log_ratio, where=mask),
        "objective/kl_k3_per_token/mean": Metric.of(k3, where=mask),
        "objective/entropy_estimate/mean": Metric.of(-batch.policy_logprobs, where=mask),
    }


def _behavior_metrics(batch: ObjectiveBatch) -> dict[str, Metric]:
    mask = batch.completion_mask
    log_ratio = batch.token_log_ratio(batch.policy_logprobs, batch.behavior_logprobs).double()
    ratio = _ratio(log_ratio)
    low, high = RATIO_RANGE
    return {
        "objective/behavior_logprob_difference/mean_abs": Metric.of(log_ratio.abs(), where=mask),
        "objective/behavior_logprob_difference/p50": Metric.of(log_ratio.abs(), where=mask, reduction="p50"),
        "objective/behavior_logprob_difference/p95": Metric.of(log_ratio.abs(), where=mask, reduction="p95"),
        "objective/behavior_ratio_outside/share": Metric.of((ratio < low) | (ratio > high), where=mask),
        "objective/effective_sample_size/share": Metric.of(_ratio(log_ratio.sum(dim=1)), reduction="effective_share"),
    }


def _ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()

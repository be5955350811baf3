"""Probability ratios between policies, and the losses made of them.

pi_old of every ratio is the behaviour policy, by the log-probs that searchers stored: data is off-policy by nature, and
a batch is used for one update, so there is no other older policy. Ratios thereby also correct for differences between
the searcher's engine and the trainer.
Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tbactl.config.objectives import ClippedOptions, ImportanceSampledOptions
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import Metric

MAX_EXPONENT = 20.0
"""Where `exp` is continued by a straight line: at 4.9e8, a ratio that no healthy run sees."""


def ratio_of(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(log_ratio), beyond MAX_EXPONENT its tangent: float32 does not overflow, and gradients keep their sign.

    Without it one token that the policy has left 89 nats behind makes loss and gradient NaN.
    """
    excess = (log_ratio - MAX_EXPONENT).clamp(min=0.0)
    return log_ratio.clamp(max=MAX_EXPONENT).exp() + math.exp(MAX_EXPONENT) * excess


def completion_logprobs(batch: ObjectiveBatch) -> Float[Tensor, "trajectories tokens"]:
    """Log pi_theta of completion tokens, 0 elsewhere."""
    return torch.where(batch.completion_mask, batch.policy_logprobs, 0.0)


def clipped_loss(
    ratio: Float[Tensor, "*shape"], advantages: Float[Tensor, "*#shape"], *, clip: ClippedOptions
) -> Float[Tensor, "*shape"]:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), arXiv 1707.06347 eq. 7."""
    clipped = ratio.clamp(1.0 - clip.clip_low, 1.0 + clip.clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def is_clipped(
    ratio: Float[Tensor, "*shape"], advantages: Float[Tensor, "*#shape"], *, clip: ClippedOptions
) -> Bool[Tensor, "*shape"]:
    """Where clipping takes the gradient: the ratio has already moved the way its advantage asks for."""
    too_low = (ratio < 1.0 - clip.clip_low) & (advantages < 0)
    too_high = (ratio > 1.0 + clip.clip_high) & (advantages > 0)
    return too_low | too_high


def k3_divergence(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Schulman's k3 estimate of KL(pi_theta, pi_ref) from log pi_theta - log pi_ref; in nats, >= 0, with gradient.

    pi_ref / pi_theta - log(pi_ref / pi_theta) - 1, arXiv 2402.03300 eq. 4.
    """
    return ratio_of(-log_ratio) + log_ratio - 1.0


def importance_weights(
    batch: ObjectiveBatch, options: ImportanceSampledOptions
) -> tuple[Float[Tensor, "trajectories tokens_or_1"], dict[str, Metric]]:
    """min(pi_theta / behaviour, cap) without gradient, of tokens or of completions, and metrics; 1 without a cap."""
    cap = options.importance_sampling_cap
    if cap is None:
        return torch.ones_like(batch.policy_logprobs[:, :1]), {}
    with torch.no_grad():
        log_ratio = batch.token_log_ratio(batch.policy_logprobs, batch.behavior_logprobs)
        where = batch.completion_mask
        if options.importance_sampling_level == "sequence":
            log_ratio = log_ratio.sum(dim=1, keepdim=True)
            where = torch.ones_like(log_ratio, dtype=torch.bool)
        ratio = ratio_of(log_ratio)
    return ratio.clamp(max=cap), {"objective/clipped/share": Metric.of(ratio > cap, where=where)}

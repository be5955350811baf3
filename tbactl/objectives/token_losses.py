"""The loss of each token in the GRPO family: a bounded ratio times the advantage, and the KL term.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import TokenRatioOptions
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import Metric
from tbactl.objectives.ratios import clipped_loss, completion_logprobs, is_clipped, k3_divergence, ratio_of


def token_losses(
    batch: ObjectiveBatch, advantages: Float[Tensor, " trajectories"], *, options: TokenRatioOptions
) -> tuple[Float[Tensor, "trajectories tokens"], dict[str, Metric]]:
    """-min(rho A, clip(rho) A) + beta k3 of each completion token, 0 elsewhere, and the share of bounded ratios.

    With `importance_sampling_cap` the first term is -sg[min(rho, cap)] A log pi_theta: a bounded weight rather than a
    bounded objective, so that no token loses its gradient.
    """
    advantages = advantages[:, None]
    ratio = ratio_of(batch.token_log_ratio(batch.policy_logprobs, batch.behavior_logprobs))
    cap = options.importance_sampling_cap
    if cap is None:
        losses = clipped_loss(ratio, advantages, clip=options)
        is_bounded = is_clipped(ratio, advantages, clip=options)
    else:
        losses = -ratio.detach().clamp(max=cap) * advantages * completion_logprobs(batch)
        is_bounded = ratio > cap
    if options.kl_in_loss:
        log_ratio = batch.token_log_ratio(batch.policy_logprobs, batch.reference_logprobs)
        losses = losses + batch.beta * k3_divergence(log_ratio)
    share = Metric.of(is_bounded, where=batch.completion_mask)
    return losses.where(batch.completion_mask, 0.0), {"objective/clipped/share": share}

"""The squared surrogate of Kimi k1.5, arXiv 2501.12599, section 2.3.2: Trajectory Balance with another log Z.

Letters in the shapes: `trajectories` N, `groups` prompts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import KimiOptions, parse_objective_options
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.log_partition import group_mean
from tbactl.objectives.metrics import Metric


class Kimi:
    """loss = beta / 2 * mean of squared residuals with the mean reward in place of beta log Z.

    The paper minimises (r - tau log Z - tau log(pi_theta / pi_i))^2 and puts the mean reward of the prompt's
    trajectories for tau log Z, so that the gradient is

        - mean_j [ (r_j - mean r) - tau log(pi_theta(y_j) / pi_i(y_j)) ] grad log pi_theta(y_j),    tau = beta,

    the paper's up to sign, and in reward units as that of `trajectory-balance`, which differs by the control variate
    alone: it subtracts the mean log-ratio as well. Without that the residuals of a group do not sum to zero, and a
    group of equal rewards pulls each trajectory to its reference probability instead of pulling them together. At the
    optimum pi_ref exp(r / beta) / Z the loss is not zero: mean r is below beta log Z.

    pi_i is the policy at the start of the paper's iteration i: `reference.kind = "reset"`.

    The mean reward stands for log Z only on-policy. `importance_sampling_cap` c weights other data accordingly: squared
    residuals are multiplied by min(pi_theta(y) / behaviour(y), c), a constant for the gradient. `trajectory-balance`
    has no such option: its residual has one root, wherever the data is from.

    Args:
        **options: those of `KimiOptions`.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    required_fields = frozenset(
        {"policy_logprobs", "reference_logprobs", "completion_mask", "rewards", "group_index", "beta"}
    )

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(KimiOptions, options, kind="kimi")
        if self._options.importance_sampling_cap is not None:
            self.required_fields = self.required_fields | {"behavior_logprobs"}

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics."""
        baseline = group_mean(batch.rewards, group_index=batch.group_index, num_groups=batch.num_groups)
        log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.reference_logprobs)
        reward_residual = baseline[batch.group_index] + batch.beta * log_ratio - batch.rewards
        weights, metrics = self._importance_weights(batch)
        losses = weights * reward_residual.square() / (2 * batch.beta)
        metrics |= {
            "objective/loss/mean": Metric.of(losses),
            "objective/residual/mean_abs": Metric.of(reward_residual.abs()),
            "objective/residual/rms": Metric.of(reward_residual, reduction="rms"),
        }
        return losses.sum() / batch.num_trajectories_global, metrics | batch_metrics(batch)

    @torch.no_grad()
    def _importance_weights(
        self, batch: ObjectiveBatch
    ) -> tuple[Float[Tensor, " trajectories"] | float, dict[str, Metric]]:
        cap = self._options.importance_sampling_cap
        if cap is None:
            return 1.0, {}
        log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.behavior_logprobs)
        clipped = {"objective/clipped/share": Metric.of(log_ratio > math.log(cap))}
        # Cut before exp, which would be infinite for a policy far away.
        return log_ratio.clamp(max=math.log(cap)).exp(), clipped

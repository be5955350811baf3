"""TBA', Trajectory Balance with token ratios, as in the NeurIPS version of arXiv 2503.18929 (section 6, table 4).

Letters in the shapes: `trajectories` N, `tokens` T, `groups` prompts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import TbaPrimeOptions, parse_objective_options
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.log_partition import group_mean
from tbactl.objectives.metrics import Metric


class TbaPrime:
    """The Dr. GRPO token loss with the KL to the reference inside the advantage.

        A_j    = (r_j - mean r) - beta (KL_j - mean KL)
        KL_j   = sum_t clamp(log pi_theta,t - log pi_ref,t, +-10), of the policy of now, no gradient
        mean KL = mean over the group of sum_t clamp(log pi_old,t - log pi_ref,t, +-10)
        loss_j = sum_t -min(pi_theta,t / pi_old,t, 8) A_j / (prompt tokens + completion tokens)

    and the mean of loss_j over the step's trajectories. A_j is not divided by a standard deviation. The gradient of a
    token vanishes above the cap (a truncated ratio; CISPO would keep it), whatever the sign of A_j. The length in the
    denominator is that of the whole sequence, as the reference code has it with one sequence a micro-batch: a long
    completion weighs less for each of its tokens. The paper resets the reference every 50 steps: `reference.kind`.

    pi_old is the policy that generated. The reference code recomputes its log-probs with a snapshot of the weights from
    `max_async_level` steps ago. Here the log-probs that the searcher recorded stand for them: they are those of the
    very weights that sampled each token, also where weights changed in the middle of a completion, and no snapshot has
    to be kept for every age that a buffer can hold. What that costs is the rounding between two engines,
    `objective/behavior_logprob_difference` at staleness 0. With `searchers.top_p` < 1 they are renormalised, and the
    ratio is biased.

    Off-policy data shifts the two KL terms against each other, so A_j no longer has mean zero over a group; that is
    the published loss.

    Args:
        **options: those of `TbaPrimeOptions`. `importance_sampling = false` replaces the ratio by log pi_theta,t.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    required_fields = frozenset(
        {
            "policy_logprobs",
            "reference_logprobs",
            "behavior_logprobs",
            "completion_mask",
            "rewards",
            "group_index",
            "num_prompt_tokens",
            "beta",
        }
    )

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(TbaPrimeOptions, options, kind="tba-prime")

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics. An empty completion has loss 0."""
        advantage = self._advantage(batch)
        log_ratio = batch.token_log_ratio(batch.policy_logprobs, batch.behavior_logprobs)
        # Cut before exp: a far ratio would become infinite, and its gradient 0 * inf = NaN.
        ratio = log_ratio.clamp(max=math.log(self._options.ratio_cap)).exp()
        gain = ratio if self._options.importance_sampling else batch.policy_logprobs
        token_losses = torch.where(batch.completion_mask, -gain * advantage[:, None], 0.0)
        lengths = batch.num_prompt_tokens + batch.completion_mask.sum(dim=1)
        losses = token_losses.sum(dim=1) / lengths
        metrics = {"objective/loss/mean": Metric.of(losses)}
        if self._options.importance_sampling:
            is_cut = log_ratio > math.log(self._options.ratio_cap)
            metrics["objective/clipped/share"] = Metric.of(is_cut, where=batch.completion_mask)
        return losses.sum() / batch.num_trajectories_global, metrics | batch_metrics(batch)

    @torch.no_grad()
    def _advantage(self, batch: ObjectiveBatch) -> Float[Tensor, " trajectories"]:
        """A_j in reward units."""
        kl = self._clamped_kl(batch, batch.policy_logprobs)
        behavior_kl = self._clamped_kl(batch, batch.behavior_logprobs)
        # One mean of both: r - beta KL of the behaviour policy is what the group averages.
        baseline = group_mean(
            batch.rewards - batch.beta * behavior_kl, group_index=batch.group_index, num_groups=batch.num_groups
        )
        return batch.rewards - batch.beta * kl - baseline[batch.group_index]

    def _clamped_kl(
        self, batch: ObjectiveBatch, logprobs: Float[Tensor, "trajectories tokens"]
    ) -> Float[Tensor, " trajectories"]:
        clamp = self._options.kl_clamp
        return batch.token_log_ratio(logprobs, batch.reference_logprobs).clamp(-clamp, clamp).sum(dim=1)

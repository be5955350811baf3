"""Proximal RLOO: the off-policy RLOO of asynchronous RLHF, arXiv 2410.18252.

Letters in the shapes: `trajectories` N.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import ProximalRlooOptions, parse_objective_options
from tbactl.objectives.baselines import minus_leave_one_out_mean, regularized_rewards
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.ratios import clipped_loss, is_clipped, ratio_of


class ProximalRloo:
    """loss = -mean_j min(rho_j A_j, clip(rho_j) A_j), A constant, rho = pi_theta(y) / pi_old(y) of whole completions.

        A = R_j - mean of the other R of the prompt,    R = r - beta [log pi_old(y) - log pi_ref(y)]

    Gradient where not clipped: -rho A grad log pi_theta(y). pi_old is the behaviour policy, by its stored log-probs, in
    the reward as well: that of generation, as in the paper's code and in TRL 1.16's `RLOOTrainer`, whose loss this is.
    Differs from both in that pi_old is the searcher's engine itself, and each batch gets one update.

    A ratio of a completion is a product over its tokens: far off-policy almost all are clipped, which stops learning.

    Options: `config.objectives.ProximalRlooOptions`.

    Raises:
        ConfigError: at construction, when options are unknown or wrong.
    """

    required_fields = frozenset(
        {
            "policy_logprobs",
            "reference_logprobs",
            "behavior_logprobs",
            "completion_mask",
            "rewards",
            "group_index",
            "beta",
        }
    )

    def __init__(self, **options: Any) -> None:
        self._clip = parse_objective_options(ProximalRlooOptions, options, kind="proximal-rloo")

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics. A group of one teaches nothing."""
        advantages = minus_leave_one_out_mean(batch, regularized_rewards(batch, batch.behavior_logprobs))
        ratio = ratio_of(batch.sequence_log_ratio(batch.policy_logprobs, batch.behavior_logprobs))
        losses = clipped_loss(ratio, advantages, clip=self._clip)
        loss = losses.sum() / batch.num_trajectories_global
        own = {
            "objective/loss/mean": Metric.of(losses),
            "objective/clipped/share": Metric.of(is_clipped(ratio, advantages, clip=self._clip)),
        }
        return loss, own | batch_metrics(batch)

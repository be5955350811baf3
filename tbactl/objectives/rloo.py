"""RLOO: REINFORCE with a leave-one-out baseline, arXiv 2402.14740.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import RlooOptions, parse_objective_options
from tbactl.objectives.baselines import minus_leave_one_out_mean, regularized_rewards
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.ratios import completion_logprobs, importance_weights


class Rloo:
    """loss = -mean_j A_j log pi_theta(y_j), A constant.

        A = R_j - mean of the other R of the prompt,    R = r - beta [log pi_theta(y) - log pi_ref(y)]

    The RLOO estimator of the paper (section 3.3), sequence level. For K trajectories A is K / (K - 1) times that of
    `reinforce`: the same direction where all groups have one size. Differs from TRL 1.16, which clips a ratio to the
    policy that generated (`proximal-rloo`), and takes that policy's KL divergence rather than the current one's.

    Options: `config.objectives.RlooOptions`. With `importance_sampling_cap` each token's (or completion's) term is
    weighted by min(pi_theta / behaviour, cap).

    Raises:
        ConfigError: at construction, when options are unknown or wrong.
    """

    required_fields = frozenset(
        {"policy_logprobs", "reference_logprobs", "completion_mask", "rewards", "group_index", "beta"}
    )

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(RlooOptions, options, kind="rloo")
        if self._options.importance_sampling_cap is not None:
            self.required_fields = self.required_fields | {"behavior_logprobs"}

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics. A group of one teaches nothing."""
        advantages = minus_leave_one_out_mean(batch, regularized_rewards(batch, batch.policy_logprobs))
        weights, metrics = importance_weights(batch, self._options)
        losses = -advantages * (weights * completion_logprobs(batch)).sum(dim=1)
        loss = losses.sum() / batch.num_trajectories_global
        return loss, metrics | {"objective/loss/mean": Metric.of(losses)} | batch_metrics(batch)

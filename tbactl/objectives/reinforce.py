"""REINFORCE (Williams, 1992) on completions, with the KL penalty in the reward.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import ReinforceOptions, parse_objective_options
from tbactl.objectives.baselines import minus_group_mean, regularized_rewards
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.ratios import completion_logprobs, importance_weights


class Reinforce:
    """loss = -mean_j A_j log pi_theta(y_j), A constant.

        A = R_j - mean R over the prompt's group,    R = r - beta [log pi_theta(y) - log pi_ref(y)]

    The policy gradient of arXiv 2503.18929 eq. 7 (appendix A): its gradient *is* that of `trajectory-balance`, on any
    data. What differs is the claim: as a policy gradient it is exact on-policy only, as trajectory balance it is a
    regression that is right off-policy too. `baseline = "zero"` and importance weights make the gradients differ.

    Options: `config.objectives.ReinforceOptions`. With `importance_sampling_cap` each token's (or completion's) term is
    weighted by min(pi_theta / behaviour, cap).

    Raises:
        ConfigError: at construction, when options are unknown or wrong.
    """

    required_fields = frozenset(
        {"policy_logprobs", "reference_logprobs", "completion_mask", "rewards", "group_index", "beta"}
    )

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(ReinforceOptions, options, kind="reinforce")
        if self._options.importance_sampling_cap is not None:
            self.required_fields = self.required_fields | {"behavior_logprobs"}

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics."""
        advantages = regularized_rewards(batch, batch.policy_logprobs)
        if self._options.baseline == "group-mean":
            advantages = minus_group_mean(batch, advantages)
        weights, metrics = importance_weights(batch, self._options)
        losses = -advantages * (weights * completion_logprobs(batch)).sum(dim=1)
        loss = losses.sum() / batch.num_trajectories_global
        return loss, metrics | {"objective/loss/mean": Metric.of(losses)} | batch_metrics(batch)

"""Group Relative Policy Optimization, arXiv 2402.03300, and the token mean of DAPO, arXiv 2503.14476.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import GrpoOptions, parse_objective_options
from tbactl.objectives.baselines import minus_group_mean, over_group_std
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.token_losses import token_losses


class Grpo:
    """loss = -mean_j mean_t { min(rho_t A_j, clip(rho_t) A_j) - beta k3_t }, rho_t = pi_theta / pi_old of a token.

        A = (r_j - mean r) / (std r + 1e-4) over the prompt's group,    k3 = pi_ref / pi - log(pi_ref / pi) - 1

    Eq. 3 and 4 of the paper, with outcome supervision. pi_old is the behaviour policy, by its stored log-probs; each
    batch gets one update. As in TRL 1.16 the standard deviation has K - 1 in its denominator, and 1e-4 added to it.

    Options: `config.objectives.GrpoOptions`.
      loss_type: `grpo` divides by each completion's length, as the paper does; `dapo` takes the mean over all tokens of
        the step (DAPO eq. 8). TRL's `bnpo` divides by the tokens of a micro-batch: not offered, for then the loss
        depends on how a batch is cut. `dr_grpo` is the objective `dr-grpo`.
      importance_sampling_cap: truncated importance weights instead of clipping; with `dapo` it is CISPO, arXiv
        2506.13585 eq. 4 and 5 (upper bound only), TRL's `cispo` with this as its `epsilon_high`.

    Raises:
        ConfigError: at construction, when options are unknown or wrong.
    """

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(GrpoOptions, options, kind="grpo")
        fields = {"policy_logprobs", "behavior_logprobs", "completion_mask", "rewards", "group_index"}
        if self._options.kl_in_loss:
            fields |= {"reference_logprobs", "beta"}
        if self._options.loss_type == "dapo":
            fields |= {"num_tokens_global"}
        self.required_fields = frozenset(fields)

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics. A group of one only feels the KL term."""
        advantages = minus_group_mean(batch, batch.rewards)
        if self._options.scale_rewards:
            advantages = over_group_std(batch, advantages)
        losses, metrics = token_losses(batch, advantages, options=self._options)
        if self._options.loss_type == "dapo":
            loss = losses.sum() / max(batch.num_tokens_global, 1)
            own = {"objective/loss/mean": Metric.of(losses, where=batch.completion_mask)}
        else:
            means = losses.sum(dim=1) / batch.completion_mask.sum(dim=1).clamp(min=1)
            loss = means.sum() / batch.num_trajectories_global
            own = {"objective/loss/mean": Metric.of(means)}
        return loss, own | metrics | batch_metrics(batch)

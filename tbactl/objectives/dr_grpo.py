"""Dr. GRPO: GRPO without its two biases, arXiv 2503.20783.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import DrGrpoOptions, parse_objective_options
from tbactl.objectives.baselines import minus_group_mean
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.token_losses import token_losses


class DrGrpo:
    """loss = -mean_j 1/L sum_t { min(rho_t A_j, clip(rho_t) A_j) - beta k3_t }, L = `searchers.max_new_tokens`.

        A = r_j - mean r over the prompt's group,    rho_t = pi_theta / pi_old of a token

    Of the paper's section 3: no division by the standard deviation, which favours questions too easy or too hard, nor
    by a completion's length, which favours long wrong answers. The constant L instead of their sum, as in the authors'
    code and TRL 1.16's `dr_grpo`, changes the scale only. pi_old is the behaviour policy, by its stored log-probs; each
    batch gets one update. The paper trains without KL term: `kl_in_loss = false`.

    Options: `config.objectives.DrGrpoOptions`. `importance_sampling_cap`: truncated importance weights instead of
    clipping.

    Raises:
        ConfigError: at construction, when options are unknown or wrong.
    """

    def __init__(self, **options: Any) -> None:
        self._options = parse_objective_options(DrGrpoOptions, options, kind="dr-grpo")
        fields = {
            "policy_logprobs",
            "behavior_logprobs",
            "completion_mask",
            "rewards",
            "group_index",
            "max_completion_tokens",
        }
        if self._options.kl_in_loss:
            fields |= {"reference_logprobs", "beta"}
        self.required_fields = frozenset(fields)

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics. A group of one only feels the KL term."""
        advantages = minus_group_mean(batch, batch.rewards)
        token, metrics = token_losses(batch, advantages, options=self._options)
        losses = token.sum(dim=1) / batch.max_completion_tokens
        loss = losses.sum() / batch.num_trajectories_global
        return loss, {"objective/loss/mean": Metric.of(losses)} | metrics | batch_metrics(batch)

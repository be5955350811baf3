"""PPO's clipped surrogate without a critic, arXiv 1707.06347.

Letters in the shapes: `trajectories` N, `tokens` T.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.config.objectives import PpoClipOptions, parse_objective_options
from tbactl.objectives.baselines import minus_group_mean, regularized_rewards
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric
from tbactl.objectives.ratios import clipped_loss, is_clipped, ratio_of


class PpoClip:
    """loss = -mean_t min(rho_t A, clip(rho_t) A) over all tokens of the step, rho_t = pi_theta / pi_old of a token.

        A = R_j - mean R over the prompt's group,    R = r - beta [log pi_old(y) - log pi_ref(y)]

    Eq. 7 of the paper; pi_old is the behaviour policy, by its stored log-probs. Differs from it, and from PPO as used
    for RLHF, in the advantage: the mean reward of the group replaces the critic, so all tokens of a completion share
    one A (no GAE, no value loss), and each batch gets one update. On-policy the gradient is that of `reinforce` times
    trajectories / tokens.

    Options: `config.objectives.PpoClipOptions`.

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
            "num_tokens_global",
            "beta",
        }
    )

    def __init__(self, **options: Any) -> None:
        self._clip = parse_objective_options(PpoClipOptions, options, kind="ppo-clip")

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss over tokens, and its metrics."""
        advantages = minus_group_mean(batch, regularized_rewards(batch, batch.behavior_logprobs))[:, None]
        ratio = ratio_of(batch.token_log_ratio(batch.policy_logprobs, batch.behavior_logprobs))
        losses = clipped_loss(ratio, advantages, clip=self._clip).where(batch.completion_mask, 0.0)
        loss = losses.sum() / max(batch.num_tokens_global, 1)
        own = {
            "objective/loss/mean": Metric.of(losses, where=batch.completion_mask),
            "objective/clipped/share": Metric.of(
                is_clipped(ratio, advantages, clip=self._clip), where=batch.completion_mask
            ),
        }
        return loss, own | batch_metrics(batch)

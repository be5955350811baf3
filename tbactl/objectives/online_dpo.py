"""Online DPO, arXiv 2402.04792 (with a reward in place of its judge), as the baseline of arXiv 2410.18252.

Letters in the shapes: `trajectories` N, `groups` prompts.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from tbactl.config.objectives import OnlineDpoOptions, parse_objective_options
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import Metric


class OnlineDpo:
    """Of each prompt's trajectories the best against the worst, by DPO's loss (arXiv 2305.18290, eq. 7).

        loss = mean over prompts of -log sigmoid(beta (delta_chosen - delta_rejected)),
        delta = log pi_theta(y) - log pi_ref(y)

    With two trajectories a prompt that is the loss of both papers; with more, the rest is unused but tells how good
    the two are. Of equal rewards the first row counts. A prompt whose rewards are all equal has no pair and loss 0.
    The mean is over all prompts of the step, those without a pair included (`num_groups_global`), so that losses of
    micro-batches add up, and a step with few pairs is a small step.

    beta is DPO's own: it multiplies log-ratios only, not rewards, of which only the order counts. It has no unit here,
    and neither has the loss; values of the papers are near 0.1.

    Args:
        **options: none.

    Raises:
        ConfigError: there are options.
    """

    required_fields = frozenset(
        {"policy_logprobs", "reference_logprobs", "completion_mask", "rewards", "group_index", "beta"}
    )

    def __init__(self, **options: Any) -> None:
        parse_objective_options(OnlineDpoOptions, options, kind="online-dpo")

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss over prompts, and its metrics."""
        chosen, rejected = best_and_worst(batch)
        has_pair = batch.rewards[chosen] > batch.rewards[rejected]
        log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.reference_logprobs)
        margin = batch.beta * (log_ratio[chosen] - log_ratio[rejected])
        losses = torch.where(has_pair, -logsigmoid(margin), 0.0)
        metrics = {
            "objective/loss/mean": Metric.of(losses),
            "objective/pairs/share": Metric.of(has_pair),
            "objective/preference_margin/mean": Metric.of(margin, where=has_pair),
            "objective/preference_accuracy/share": Metric.of(margin > 0, where=has_pair),
        }
        return losses.sum() / batch.num_groups_global, metrics | batch_metrics(batch)


def best_and_worst(batch: ObjectiveBatch) -> tuple[Int[Tensor, " groups"], Int[Tensor, " groups"]]:
    """Of each prompt the row with the highest and that with the lowest reward; of ties the first row."""
    return _first_row_of_extreme(batch, reduce="amax"), _first_row_of_extreme(batch, reduce="amin")


def _first_row_of_extreme(batch: ObjectiveBatch, *, reduce: str) -> Int[Tensor, " groups"]:
    index = batch.group_index.long()
    extremes = batch.rewards.new_zeros(batch.num_groups).scatter_reduce(
        0, index, batch.rewards, reduce=reduce, include_self=False
    )
    rows = torch.arange(len(index), device=index.device)
    candidates = rows.where(batch.rewards == extremes[index], len(index))
    return rows.new_zeros(batch.num_groups).scatter_reduce(0, index, candidates, reduce="amin", include_self=False)

"""Trajectory Balance with a per-prompt VarGrad log Z: the objective of TBA, arXiv 2503.18929, eq. 3 to 5.

Symbols, and what other literatures call them:

    here            paper           GFlowNet / torchgfn                   RLHF
    --------------  --------------  ------------------------------------  -------------------------------
    beta            beta            reward exponent 1 / beta: there a     KL coefficient
                                    *larger* beta is a *greedier* target
    log pi_theta    log pi_theta    log P_F of a trajectory               policy log-prob of the sequence
    log pi_ref      log pi_ref      part of the log reward                reference log-prob
    r / beta + log pi_ref           log R(y; x)                           -
    (none)          (none)          log P_B = 0: a text has one parent    -
    log_z           log Z^hat(x)    log Z, learned or estimated           soft value of the prompt / beta
    -beta residual  A (eq. 7)       -                                     advantage of r - beta KL

Letters in the shapes: `trajectories` N, `groups` prompts.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.log_partition import estimated_log_z
from tbactl.objectives.metrics import Metric


class TrajectoryBalance:
    """loss = beta / 2 * mean of squared balance residuals; its gradient is in reward units.

    The paper's eq. 5 and the reference code minimise mean(residual^2), whose gradient is

        - (2 / beta) * mean_j A_j grad log pi_theta(y_j),    A = (r - mean r) - beta (KL - mean KL),

    with KL_j = log pi_theta(y_j) - log pi_ref(y_j) and means over the prompt's group. It grows like 1 / beta: over a
    schedule from 0.012 to 0.004 it triples, which Adam hides and gradient clipping does not. The factor beta / 2 makes
    it - mean_j A_j grad log pi_theta(y_j), the scale of a policy gradient with mean baseline: `max_grad_norm` and the
    learning rate keep their meaning while beta moves. The minimum is the same: zero, at pi_ref exp(r / beta) / Z.

    log Z is a constant here (stop-gradient). For whole groups that changes no gradient: residuals of a group sum to
    zero, and so does what would flow through log Z. Hence a group must never be split over micro-batches.

    Example:
        loss, metrics = TrajectoryBalance()(batch)
        loss.backward()

    Raises:
        ConfigError: at construction, when options are given; there are none.
    """

    required_fields = frozenset(
        {"policy_logprobs", "reference_logprobs", "completion_mask", "rewards", "group_index", "beta"}
    )

    def __init__(self, **options: Any) -> None:
        if options:
            raise ConfigError(
                f"objective 'trajectory-balance' has no options, got {', '.join(sorted(options))}; remove them from "
                f"`objective.options` (beta and its schedule are keys of `objective` itself)."
            )

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics.

        A group of one trajectory has residual 0 and teaches nothing. A group of equal rewards still pulls the policy's
        log-ratios together, toward the reference.
        """
        residual, log_z = balance_residual(batch)
        losses = batch.beta / 2 * residual.square()
        loss = losses.sum() / batch.num_trajectories_global
        return loss, _balance_metrics(batch, residual, log_z, losses) | batch_metrics(batch)


def balance_residual(
    batch: ObjectiveBatch,
) -> tuple[Float[Tensor, " trajectories"], Float[Tensor, " groups"]]:
    """Residual of each trajectory, eq. 3, and log Z of each prompt, eq. 4; both in nats.

    residual = log Z(x) + log pi_theta(y | x) - log pi_ref(y | x) - r / beta
    """
    log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.reference_logprobs)
    own_log_z = batch.rewards / batch.beta - log_ratio
    log_z = estimated_log_z(own_log_z, group_index=batch.group_index, num_groups=batch.num_groups).detach()
    residual = log_z[batch.group_index] - own_log_z
    return residual, log_z


def _balance_metrics(
    batch: ObjectiveBatch,
    residual: Float[Tensor, " trajectories"],
    log_z: Float[Tensor, " groups"],
    losses: Float[Tensor, " trajectories"],
) -> dict[str, Metric]:
    reward_residual = batch.beta * residual
    return {
        "objective/loss/mean": Metric.of(losses),
        "objective/residual/mean_abs": Metric.of(reward_residual.abs()),
        "objective/residual/rms": Metric.of(reward_residual, reduction="rms"),
        "objective/log_z/mean": Metric.of(log_z),
        "objective/log_z/std": Metric.of(log_z, reduction="std"),
    }

"""Trajectory Balance with a log Z for each prompt: the objective of TBA, arXiv 2503.18929, eq. 3 to 5.

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

from tbactl.config.objectives import TrajectoryBalanceOptions, parse_objective_options
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

    The estimated log Z is a constant (stop-gradient). For whole groups that changes no gradient: residuals of a group
    sum to zero, and so does what would flow through log Z. Hence a group must never be split over micro-batches.

    With `log_z = "learned"` (arXiv 2405.18540 for language models) log Z is the batch's own, from a head on the prompt,
    and the same loss trains it: d loss / d log Z = beta * mean residual, which leads to the estimate above. Residuals
    of a group then do not sum to zero while the head is off, and a group of one trajectory teaches something.

    **A tempered target**, as in red-teaming with GFlowNets (arXiv 2405.18540): the recipe's `reference_temperature`
    gamma and `target_temperature` T make it

        log R(y) = [ log pi_ref(y | x) / gamma + r / beta ] / T.

    A batch says that as `reference_exponent` = 1 / (gamma T) and `beta` = beta T, which is what the loss is multiplied
    by: with T = 1 and gamma = 1 it is the loss above, and in reward units whatever they are. Minimum: zero, at
    pi_ref^(1 / (gamma T)) exp(r / (beta T)) / Z.

    Importance weights have no place here: the residual has one root, whatever policy the data came from.

    Example:
        loss, metrics = TrajectoryBalance()(batch)
        loss.backward()

    Args:
        **options: those of `TrajectoryBalanceOptions`.

    Raises:
        ConfigError: an option is unknown or not allowed.
    """

    required_fields = frozenset(
        {
            "policy_logprobs",
            "reference_logprobs",
            "completion_mask",
            "rewards",
            "group_index",
            "beta",
            "reference_exponent",
        }
    )

    def __init__(self, **options: Any) -> None:
        chosen = parse_objective_options(TrajectoryBalanceOptions, options, kind="trajectory-balance")
        self.log_z_learning_rate = chosen.log_z_learning_rate
        self.log_z_initial = chosen.log_z_initial
        if chosen.log_z == "learned":
            self.required_fields = self.required_fields | {"log_z"}

    def __call__(self, batch: ObjectiveBatch) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
        """The micro-batch's share of the step's mean loss, and its metrics.

        A group of one trajectory has residual 0 and teaches nothing, unless log Z is learned. A group of equal rewards
        still pulls the policy's log-ratios together, toward the reference.
        """
        residual, log_z = balance_residual(batch)
        metrics: dict[str, Metric] = {}
        if "log_z" in self.required_fields:
            assert batch.log_z is not None, "a learned log Z must be in the batch: see required_fields"
            # What the estimate has to become the learned value is added, not computed anew.
            error = batch.log_z - log_z
            residual, log_z = residual + error[batch.group_index], batch.log_z
            metrics["objective/log_z_error/mean_abs"] = Metric.of(error.abs())
        losses = batch.beta / 2 * residual.square()
        loss = losses.sum() / batch.num_trajectories_global
        metrics |= {"objective/loss/mean": Metric.of(losses)} | balance_metrics(batch, residual=residual, log_z=log_z)
        return loss, metrics | batch_metrics(batch)


def balance_residual(
    batch: ObjectiveBatch,
) -> tuple[Float[Tensor, " trajectories"], Float[Tensor, " groups"]]:
    """Residual of each trajectory, eq. 3, with the estimated log Z of each prompt, eq. 4; both in nats.

    residual = log Z(x) + log pi_theta(y | x) - reference_exponent log pi_ref(y | x) - r / beta
    """
    log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.reference_exponent * batch.reference_logprobs)
    own_log_z = batch.rewards / batch.beta - log_ratio
    log_z = estimated_log_z(own_log_z, group_index=batch.group_index, num_groups=batch.num_groups).detach()
    residual = log_z[batch.group_index] - own_log_z
    return residual, log_z


def balance_metrics(
    batch: ObjectiveBatch, *, residual: Float[Tensor, " trajectories"], log_z: Float[Tensor, " groups"]
) -> dict[str, Metric]:
    """Size of the residuals, in reward units, and log Z, in nats."""
    reward_residual = batch.beta * residual
    return {
        "objective/residual/mean_abs": Metric.of(reward_residual.abs()),
        "objective/residual/rms": Metric.of(reward_residual, reduction="rms"),
        "objective/log_z/mean": Metric.of(log_z),
        "objective/log_z/std": Metric.of(log_z, reduction="std"),
    }

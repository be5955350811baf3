"""From rewards to advantages: what a policy gradient multiplies log pi_theta with. All of it is constant (no gradient).

Float64 throughout: a mean over rewards like 1e6 in float32 leaves differences that a division by their own standard
deviation would blow up to a signal. In float64 equal float32 rewards give an advantage of exactly zero.
Letters in the shapes: `trajectories` N, `tokens` T, `groups` prompts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.log_partition import group_mean

STD_EPSILON = 1e-4
"""Added to standard deviations of rewards, in reward units; TRL's value."""


def regularized_rewards(
    batch: ObjectiveBatch, logprobs: Float[Tensor, "trajectories tokens"]
) -> Float[Tensor, " trajectories"]:
    """R - beta * [log pi(y) - log pi_ref(y)]: the reward with the KL penalty in it, for the whole completion.

    Args:
        batch: gives rewards, reference and beta.
        logprobs: of pi: the batch's policy or behaviour log-probs.
    """
    with torch.no_grad():
        log_ratio = batch.sequence_log_ratio(logprobs.double(), batch.reference_logprobs.double())
        return batch.rewards.double() - batch.beta * log_ratio


def minus_group_mean(batch: ObjectiveBatch, rewards: Float[Tensor, " trajectories"]) -> Float[Tensor, " trajectories"]:
    """R_j - mean R over the prompt's group."""
    rewards = rewards.double()
    mean = group_mean(rewards, group_index=batch.group_index, num_groups=batch.num_groups)
    return rewards - mean[batch.group_index]


def minus_leave_one_out_mean(
    batch: ObjectiveBatch, rewards: Float[Tensor, " trajectories"]
) -> Float[Tensor, " trajectories"]:
    """R_j - mean of the *other* R of the prompt, arXiv 2402.14740: K / (K - 1) (R_j - mean R). 0 when there is none."""
    size = _group_sizes(batch)
    return minus_group_mean(batch, rewards) * size / (size - 1).clamp(min=1)


def over_group_std(batch: ObjectiveBatch, advantages: Float[Tensor, " trajectories"]) -> Float[Tensor, " trajectories"]:
    """Advantages centred in their group, divided by their standard deviation there (K - 1 in the denominator).

    STD_EPSILON is added to it: groups of equal rewards, and of one trajectory, get 0.
    """
    squares = group_mean(advantages.square(), group_index=batch.group_index, num_groups=batch.num_groups)
    size = _group_sizes(batch)
    std = (squares[batch.group_index] * size / (size - 1).clamp(min=1)).sqrt()
    return advantages / (std + STD_EPSILON)


def _group_sizes(batch: ObjectiveBatch) -> Float[Tensor, " trajectories"]:
    return torch.bincount(batch.group_index, minlength=batch.num_groups)[batch.group_index].double()

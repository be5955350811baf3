"""log Z(x): how much mass exp(r / beta) adds to the reference policy on a prompt, estimated from its trajectories.

Letters in the shapes: `trajectories` N, `groups` prompts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def group_mean(
    values: Float[Tensor, " trajectories"], *, group_index: Int[Tensor, " trajectories"], num_groups: int
) -> Float[Tensor, " groups"]:
    """Mean of `values` over the rows of each group. Rows in any order, groups of any size >= 1."""
    sums = values.new_zeros(num_groups).index_add(0, group_index, values)
    counts = torch.bincount(group_index, minlength=num_groups)
    return sums / counts


def estimated_log_z(
    own_log_z: Float[Tensor, " trajectories"], *, group_index: Int[Tensor, " trajectories"], num_groups: int
) -> Float[Tensor, " groups"]:
    """VarGrad estimate of log Z of each prompt, arXiv 2503.18929 eq. 4.

        log Z(x_i) = 1/K_i sum_j [ log pi_ref(y_ij | x_i) - log pi_theta(y_ij | x_i) + r_ij / beta ]

    At the optimum pi_theta = pi_ref exp(r / beta) / Z every bracket *is* log Z, so any K trajectories give it exactly.
    Differs from the reference code in that rows find their prompt by `group_index`: no order is assumed, prompts of one
    micro-batch do not mix, and K_i may differ.

    Args:
        own_log_z: the bracket above for each trajectory, in nats.
        group_index: the prompt each row belongs to, in [0, num_groups).
        num_groups: prompts; each owns at least one row.

    Returns:
        The estimate for each prompt, in nats. Gradients flow; the objective stops them.
    """
    return group_mean(own_log_z, group_index=group_index, num_groups=num_groups)

"""A learned log Z for each prompt: a linear head on what the policy makes of the prompt.

Before this file on the way of a trajectory: `scoring.py`, which calls it. After it: `objectives/batch.py`.
Letters in the shapes: `groups` prompts, `positions` of a forward pass, `hidden` H.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tbactl.trainer.collate import MicroBatch, PaddedRows


@runtime_checkable
class LearnsLogZ(Protocol):
    """What an objective whose `required_fields` name `log_z` has besides."""

    log_z_learning_rate: float
    """Of the head, > 0, at its peak; it follows the trainer's schedule."""
    log_z_initial: float
    """What the head says of every prompt at first, in nats."""


class LogZHead(torch.nn.Module):
    """log Z(x) = w . (mean of the prompt's last hidden states) + b, in nats; arXiv 2405.18540 for red-teaming.

    The hidden states are taken as they are, without gradient: log Z follows the policy and does not move it, so that
    what the policy learns is the balance of trajectories and nothing else. The code of that paper differs: its head is
    not detached, and its gradient reaches the policy through the prompt. Weights begin at zero: the first log Z is
    the same for every prompt. Training belongs to it, the policy does not hold it: it is in checkpoints, and neither
    in exports nor in what searchers get.

    Sums are float32. Under bfloat16 weights are rounded to 1 in 256, as the policy's are.

    Args:
        hidden_size: H.
        learning_rate: its own, > 0.
        initial: of b, in nats.
    """

    def __init__(self, *, hidden_size: int, learning_rate: float, initial: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size))
        self.bias = torch.nn.Parameter(torch.full((1,), initial))

    def forward(self, hidden: Float[Tensor, "positions hidden"], batch: MicroBatch) -> Float[Tensor, " groups"]:
        """The learned log Z of each prompt of a micro-batch.

        Args:
            hidden: last hidden states of the pass over `batch.rows`, in the order of `batch.source`.
            batch: says which positions are prompts.
        """
        return prompt_means(hidden.detach(), batch) @ self.weight.float() + self.bias.float()


def prompt_means(hidden: Float[Tensor, "positions hidden"], batch: MicroBatch) -> Float[Tensor, "groups hidden"]:
    """Mean over each prompt's tokens, float32. Where rows repeat a prompt, its first row counts."""
    rows = batch.rows
    groups = torch.arange(batch.num_groups, device=hidden.device)
    first_rows = torch.searchsorted(batch.group_index, groups)  # rows of a group are neighbours
    lengths = batch.num_prompt_tokens[first_rows][:, None]
    starts = first_rows * rows.input_ids.shape[1] if isinstance(rows, PaddedRows) else groups * rows.prompt_ids.shape[1]
    places = torch.arange(int(lengths.max()), device=hidden.device)
    is_prompt = places < lengths
    states = hidden[(starts[:, None] + places).where(is_prompt, 0)].float()
    return states.where(is_prompt[..., None], 0.0).sum(dim=1) / lengths

"""The paper's formulas written out plainly, one trajectory at a time, to compare the real objective with.

Slow and obvious on purpose: no scatter, no padding arithmetic, no cleverness shared with `tbactl.objectives`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch


def sequence_logprob(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Sum of the log-probs of one trajectory's completion tokens."""
    total = logprobs[:0].sum()  # zero, but part of the graph even where no token is scored
    for logprob, is_completion in zip(logprobs, mask.tolist(), strict=True):
        if is_completion:
            total = total + logprob
    return total


def rows_of(batch: ObjectiveBatch, group: int) -> list[int]:
    """The rows that belong to one prompt."""
    return [row for row, owner in enumerate(batch.group_index.tolist()) if owner == group]


def log_partition(batch: ObjectiveBatch) -> list[Tensor]:
    """arXiv 2503.18929, eq. 4: one log Z for each prompt, in nats, with its graph."""
    estimates = []
    for group in range(batch.num_groups):
        terms = [
            sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row])
            - sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row])
            + batch.rewards[row] / batch.beta
            for row in rows_of(batch, group)
        ]
        estimates.append(sum(terms[1:], start=terms[0]) / len(terms))
    return estimates


def paper_loss(batch: ObjectiveBatch, *, stop_gradient: bool = True) -> Tensor:
    """arXiv 2503.18929, eq. 5: the mean of squared residuals in nats, over this batch's rows."""
    squares = []
    for group, log_z in enumerate(log_partition(batch)):
        for row in rows_of(batch, group):
            residual = (
                (log_z.detach() if stop_gradient else log_z)
                + sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row])
                - sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row])
                - batch.rewards[row] / batch.beta
            )
            squares.append(residual**2)
    return sum(squares[1:], start=squares[0]) / len(squares)


def policy_gradient_surrogate(batch: ObjectiveBatch) -> Tensor:
    """-mean_j A_j log pi_theta(y_j) with constant A = (r - mean r) - beta (KL - mean KL): eq. 7, in reward units."""
    total = batch.rewards.new_zeros(())
    for group in range(batch.num_groups):
        rows = rows_of(batch, group)
        policy = [sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row]) for row in rows]
        reference = [sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row]) for row in rows]
        regularized = [
            (batch.rewards[row] - batch.beta * (log_pi - log_ref)).detach()
            for row, log_pi, log_ref in zip(rows, policy, reference, strict=True)
        ]
        baseline = sum(regularized[1:], start=regularized[0]) / len(rows)
        for value, log_pi in zip(regularized, policy, strict=True):
            total = total - (value - baseline) * log_pi
    return total / len(batch.rewards)


def plain_token_logprobs(
    hidden: Tensor,
    *,
    lm_head_weight: Tensor,
    target_ids: Tensor,
    mask: Tensor,
    temperature: float,
    lm_head_bias: Tensor | None = None,
) -> Tensor:
    """All logits at once, softmax in float32 or better, zero outside the mask."""
    logits = torch.nn.functional.linear(hidden, lm_head_weight, lm_head_bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    safe_ids = target_ids.where(mask, 0)
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, safe_ids[..., None]).squeeze(-1)
    return logprobs.where(mask, 0.0)

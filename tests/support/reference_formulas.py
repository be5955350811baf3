"""The paper's formulas written out plainly, one trajectory at a time, to compare the real objective with.

Slow and obvious on purpose: no scatter, no padding arithmetic, no cleverness shared with `tbactl.objectives`.
"""

from __future__ import annotations

import math

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


def tempered_loss(
    batch: ObjectiveBatch, *, gamma: float, temperature: float, beta: float, log_z: Tensor | None = None
) -> Tensor:
    """arXiv 2405.18540: mean of (log Z + log pi - log R)^2 with log R = (log pi_ref / gamma + r / beta) / temperature.

    Log Z is learned, or else the constant mean of log R - log pi over a prompt's rows.
    """
    squares = []
    for group in range(batch.num_groups):
        differences = []
        for row in rows_of(batch, group):
            log_reference = sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row])
            log_target = (log_reference / gamma + batch.rewards[row] / beta) / temperature
            log_pi = sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row])
            differences.append(log_pi - log_target)
        mean = -sum(differences[1:], start=differences[0]).detach() / len(differences)
        squares += [((mean if log_z is None else log_z[group]) + difference) ** 2 for difference in differences]
    return sum(squares[1:], start=squares[0]) / len(squares)


def plain_token_logprobs(
    hidden: Tensor,
    *,
    lm_head_weight: Tensor,
    target_ids: Tensor,
    mask: Tensor,
    temperature: float,
    lm_head_bias: Tensor | None = None,
    barred_ids: Tensor | None = None,
    is_barred: Tensor | None = None,
) -> Tensor:
    """All logits at once, softmax in float32 or better, zero outside the mask; barred tokens are no tokens."""
    logits = torch.nn.functional.linear(hidden, lm_head_weight, lm_head_bias)
    if barred_ids is not None and is_barred is not None:
        is_listed = (torch.arange(logits.shape[-1])[:, None] == barred_ids).any(dim=-1)
        logits = logits.where(~(is_barred[..., None] & is_listed), float("-inf"))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    safe_ids = target_ids.where(mask, 0)
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, safe_ids[..., None]).squeeze(-1)
    return logprobs.where(mask, 0.0)


def tba_prime_loss(
    batch: ObjectiveBatch, *, ratio_cap: float = 8.0, kl_clamp: float = 10.0, importance_sampling: bool = True
) -> Tensor:
    """arXiv 2503.18929, NeurIPS version: token losses of TBA', over prompt + completion tokens, mean over rows."""

    def kl(logprobs: Tensor, row: int) -> Tensor:
        difference = (logprobs[row] - batch.reference_logprobs[row]).detach()
        return sequence_logprob(difference.clamp(-kl_clamp, kl_clamp), batch.completion_mask[row])

    total = batch.policy_logprobs[:0].sum()
    for group in range(batch.num_groups):
        rows = rows_of(batch, group)
        mean_reward = sum(batch.rewards[row].item() for row in rows) / len(rows)
        mean_kl = sum(kl(batch.behavior_logprobs, row).item() for row in rows) / len(rows)
        for row in rows:
            reward, row_kl = batch.rewards[row].item(), kl(batch.policy_logprobs, row).item()
            advantage = (reward - mean_reward) - batch.beta * (row_kl - mean_kl)
            num_tokens = batch.num_prompt_tokens[row].item() + batch.completion_mask[row].sum().item()
            for token in batch.completion_mask[row].nonzero().flatten().tolist():
                log_pi = batch.policy_logprobs[row, token]
                ratio = torch.exp(log_pi - batch.behavior_logprobs[row, token])
                gain = torch.clamp(ratio, max=ratio_cap) if importance_sampling else log_pi
                total = total - gain * advantage / num_tokens
    return total / len(batch.rewards)


def kimi_loss(batch: ObjectiveBatch, *, importance_sampling_cap: float | None = None) -> Tensor:
    """arXiv 2501.12599, section 2.3.2: (r - mean r - tau log(pi / pi_i))^2 / (2 tau) with tau = beta; mean of rows."""
    squares = []
    for group in range(batch.num_groups):
        rows = rows_of(batch, group)
        mean_reward = sum(batch.rewards[row].item() for row in rows) / len(rows)
        for row in rows:
            mask = batch.completion_mask[row]
            log_pi = sequence_logprob(batch.policy_logprobs[row], mask)
            log_ratio = log_pi - sequence_logprob(batch.reference_logprobs[row], mask)
            weight = 1.0
            if importance_sampling_cap is not None:
                log_weight = log_pi.item() - sequence_logprob(batch.behavior_logprobs[row], mask).item()
                weight = min(math.exp(log_weight), importance_sampling_cap)
            squares.append(weight * (batch.rewards[row] - mean_reward - batch.beta * log_ratio) ** 2)
    return sum(squares[1:], start=squares[0]) / (2 * batch.beta * len(squares))


def online_dpo_loss(batch: ObjectiveBatch) -> Tensor:
    """arXiv 2305.18290, eq. 7, on the first best and the first worst row of each prompt; mean over prompts."""
    total = batch.policy_logprobs[:0].sum()
    for group in range(batch.num_groups):
        rows = rows_of(batch, group)
        chosen = max(rows, key=lambda row: (batch.rewards[row].item(), -row))
        rejected = min(rows, key=lambda row: (batch.rewards[row].item(), row))
        if batch.rewards[chosen] > batch.rewards[rejected]:
            delta = [
                sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row])
                - sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row])
                for row in (chosen, rejected)
            ]
            total = total - torch.nn.functional.logsigmoid(batch.beta * (delta[0] - delta[1]))
    return total / batch.num_groups


def learned_log_z_loss(batch: ObjectiveBatch, log_z: Tensor) -> Tensor:
    """arXiv 2405.18540: mean (log Z + log pi - log pi_ref - r / beta)^2 in nats, log Z a parameter of each prompt."""
    squares = []
    for row, group in enumerate(batch.group_index.tolist()):
        mask = batch.completion_mask[row]
        log_ratio = sequence_logprob(batch.policy_logprobs[row] - batch.reference_logprobs[row], mask)
        squares.append((log_z[group] + log_ratio - batch.rewards[row] / batch.beta) ** 2)
    return sum(squares[1:], start=squares[0]) / len(squares)


def token_triples(batch: ObjectiveBatch, row: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """log pi_theta, log pi_ref and log behaviour of each completion token of one trajectory."""
    return [
        (batch.policy_logprobs[row, token], batch.reference_logprobs[row, token], batch.behavior_logprobs[row, token])
        for token in range(batch.completion_mask.shape[1])
        if batch.completion_mask[row, token]
    ]


def rewards_with_kl(batch: ObjectiveBatch, logprobs: Tensor) -> list[Tensor]:
    """r - beta log(pi / pi_ref) of whole completions, constant."""
    return [
        batch.rewards[row].detach()
        - batch.beta
        * (
            sequence_logprob(logprobs[row], batch.completion_mask[row])
            - sequence_logprob(batch.reference_logprobs[row], batch.completion_mask[row])
        ).detach()
        for row in range(len(batch.rewards))
    ]


def advantages_of(batch: ObjectiveBatch, rewards: list[Tensor], *, baseline: str) -> list[Tensor]:
    """Rewards minus `none`, the mean of the prompt's (`group`), or the mean of its `others` (0 if there are none)."""
    results = []
    for row, owner in enumerate(batch.group_index.tolist()):
        group = rows_of(batch, owner)
        others = [rewards[other] for other in group if other != row]
        if baseline == "none":
            results.append(rewards[row])
        elif baseline == "group":
            results.append(rewards[row] - sum(rewards[other] for other in group) / len(group))
        else:
            results.append(rewards[row] - sum(others) / len(others) if others else 0 * rewards[row])
    return results


def score_function_loss(
    batch: ObjectiveBatch, advantages: list[Tensor], *, weights: list[list[float]] | None
) -> Tensor:
    """-mean_j A_j sum_t w_jt log pi_theta(y_jt): REINFORCE, and RLOO of arXiv 2402.14740."""
    total = batch.policy_logprobs[:0].sum()
    for row, advantage in enumerate(advantages):
        for number, (policy, _, _) in enumerate(token_triples(batch, row)):
            total = total - advantage * (1.0 if weights is None else weights[row][number]) * policy
    return total / len(advantages)


def surrogate(ratio: Tensor, advantage: Tensor, *, low: float, high: float) -> Tensor:
    """min(ratio A, clip(ratio) A), arXiv 1707.06347 eq. 7, by cases."""
    if advantage >= 0:
        return advantage * (ratio if ratio < 1 + high else 1 + high)
    return advantage * (ratio if ratio > 1 - low else 1 - low)


def sequence_surrogate_loss(batch: ObjectiveBatch, advantages: list[Tensor], *, low: float, high: float) -> Tensor:
    """Proximal RLOO: the ratio is that of whole completions, the mean over completions."""
    total = batch.policy_logprobs[:0].sum()
    for row, advantage in enumerate(advantages):
        log_ratio = sequence_logprob(batch.policy_logprobs[row], batch.completion_mask[row]) - sequence_logprob(
            batch.behavior_logprobs[row], batch.completion_mask[row]
        )
        total = total - surrogate(log_ratio.exp(), advantage, low=low, high=high)
    return total / len(advantages)


def token_surrogates(
    batch: ObjectiveBatch, advantages: list[Tensor], *, low: float, high: float, has_kl: bool
) -> list[list[Tensor]]:
    """For each trajectory, for each token: clipped surrogate, minus beta k3 (arXiv 2402.03300 eq. 3 and 4)."""
    results = []
    for row, advantage in enumerate(advantages):
        terms = []
        for policy, reference, behavior in token_triples(batch, row):
            k3 = (reference.exp() / policy.exp()) - (reference.exp() / policy.exp()).log() - 1
            value = surrogate((policy - behavior).exp(), advantage, low=low, high=high)
            terms.append(value - batch.beta * k3 if has_kl else value)
        results.append(terms)
    return results

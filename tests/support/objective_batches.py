"""Batches for the tests of objectives: random ones of any shape, and small ones whose numbers are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch


def random_batch(
    group_sizes: Sequence[int], *, num_tokens: int = 5, beta: float = 0.1, seed: int = 0
) -> ObjectiveBatch:
    """Float64, rows in random order, lengths 0..num_tokens, the policy's log-probs a leaf that takes gradients."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(group_sizes)

    def logprobs() -> Tensor:
        return -torch.rand(num_rows, num_tokens, generator=generator, dtype=torch.float64) * 4

    lengths = torch.randint(0, num_tokens + 1, (num_rows,), generator=generator)
    owners = torch.arange(len(group_sizes)).repeat_interleave(torch.tensor(group_sizes))
    return ObjectiveBatch(
        policy_logprobs=logprobs().requires_grad_(),
        reference_logprobs=logprobs(),
        behavior_logprobs=logprobs(),
        completion_mask=torch.arange(num_tokens) < lengths[:, None],
        rewards=torch.randn(num_rows, generator=generator, dtype=torch.float64),
        group_index=owners[torch.randperm(num_rows, generator=generator)],
        num_groups=len(group_sizes),
        num_prompt_tokens=torch.randint(1, 9, (num_rows,), generator=generator),
        num_trajectories_global=num_rows,
        num_groups_global=len(group_sizes),
        num_tokens_global=int(lengths.sum()),
        max_completion_tokens=max(num_tokens, 1),
        beta=beta,
    )


batches = st.builds(
    random_batch,
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    num_tokens=st.integers(0, 6),
    beta=st.sampled_from([0.004, 0.05, 1.0]),
    seed=st.integers(0, 2**31 - 1),
)
"""Any number of prompts, any sizes of groups, empty completions, no tokens at all."""


def one_token_batch(
    *,
    policy: Sequence[float],
    rewards: Sequence[float],
    group_index: Sequence[int],
    reference: Sequence[float] | None = None,
    behavior: Sequence[float] | None = None,
    beta: float = 1.0,
) -> ObjectiveBatch:
    """Completions of a single token with the given log-probs (default: reference and behaviour are the policy)."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    return ObjectiveBatch(
        policy_logprobs=column(policy).requires_grad_(),
        reference_logprobs=column(policy if reference is None else reference),
        behavior_logprobs=column(policy if behavior is None else behavior),
        completion_mask=torch.ones(len(policy), 1, dtype=torch.bool),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_index=torch.tensor(group_index),
        num_groups=max(group_index) + 1,
        num_prompt_tokens=torch.full((len(policy),), 3),
        num_trajectories_global=len(policy),
        num_groups_global=max(group_index) + 1,
        num_tokens_global=len(policy),
        max_completion_tokens=1,
        beta=beta,
    )


def select_rows(batch: ObjectiveBatch, rows: Tensor) -> ObjectiveBatch:
    """Some rows of a batch, in the given order, as a micro-batch of the same step: it shares the policy's graph."""
    owners, group_index = batch.group_index[rows].unique(return_inverse=True)
    return replace(
        batch,
        policy_logprobs=batch.policy_logprobs[rows],
        reference_logprobs=batch.reference_logprobs[rows],
        behavior_logprobs=batch.behavior_logprobs[rows],
        completion_mask=batch.completion_mask[rows],
        rewards=batch.rewards[rows],
        group_index=group_index,
        num_groups=len(owners),
        num_prompt_tokens=batch.num_prompt_tokens[rows],
        log_z=None if batch.log_z is None else batch.log_z[owners],
    )

"""Identities of tba-prime, kimi, online-dpo and trajectory balance with a learned log Z, on batches of any shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.objectives.kimi import Kimi
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.online_dpo import OnlineDpo
from tbactl.objectives.tba_prime import TbaPrime
from tbactl.objectives.trajectory_balance import TrajectoryBalance, balance_residual
from tests.support.objective_batches import batches, select_rows
from tests.support.reference_formulas import (
    kimi_loss,
    learned_log_z_loss,
    online_dpo_loss,
    rows_of,
    tba_prime_loss,
)

few = settings(max_examples=15)

OBJECTIVES: dict[str, tuple[Objective, Callable[[ObjectiveBatch], Tensor]]] = {
    "tba-prime": (TbaPrime(), tba_prime_loss),
    "tba-prime, other bounds": (
        TbaPrime(ratio_cap=1.5, kl_clamp=0.5),
        lambda batch: tba_prime_loss(batch, ratio_cap=1.5, kl_clamp=0.5),
    ),
    "tba-prime, no ratio": (
        TbaPrime(importance_sampling=False),
        lambda batch: tba_prime_loss(batch, importance_sampling=False),
    ),
    "kimi": (Kimi(), kimi_loss),
    "kimi, weighted": (
        Kimi(importance_sampling_cap=2.0),
        lambda batch: kimi_loss(batch, importance_sampling_cap=2.0),
    ),
    "online-dpo": (OnlineDpo(), online_dpo_loss),
    "learned log Z": (
        TrajectoryBalance(log_z="learned"),
        lambda batch: batch.beta / 2 * learned_log_z_loss(batch, of(batch)),
    ),
}

every_objective = pytest.mark.parametrize(("objective", "formula"), OBJECTIVES.values(), ids=OBJECTIVES.keys())


def of(batch: ObjectiveBatch) -> Tensor:
    """The batch's learned log Z."""
    assert batch.log_z is not None
    return batch.log_z


def with_log_z(batch: ObjectiveBatch, seed: int) -> ObjectiveBatch:
    """The batch with a random learned log Z that takes gradients."""
    generator = torch.Generator().manual_seed(seed)
    return replace(
        batch, log_z=torch.randn(batch.num_groups, generator=generator, dtype=torch.float64).requires_grad_()
    )


def tied(batch: ObjectiveBatch, scale: float) -> ObjectiveBatch:
    """The batch with few different rewards, some of them equal within a group, of any size."""
    return replace(batch, rewards=batch.rewards.round() * scale)


any_batch = st.builds(
    with_log_z, st.builds(tied, batches, st.sampled_from([1.0, 0.0, -1e6, 1e-6])) | batches, st.integers(0, 99)
)


def gradients(loss: Tensor, batch: ObjectiveBatch) -> list[Tensor]:
    inputs = [batch.policy_logprobs, of(batch)]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def close(actual: Tensor, expected: Tensor) -> None:
    # To 1e-9 of the largest number around: with rewards of 1e6 nothing is known better than that.
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * scale)


def all_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        close(ours, theirs)


@every_objective
@few
@given(any_batch)
def test_loss_and_gradients_are_those_of_the_published_formula(
    objective: Objective, formula: Callable[[ObjectiveBatch], Tensor], batch: ObjectiveBatch
) -> None:
    loss, expected = objective(batch)[0], formula(batch)
    close(loss, expected)
    all_close(gradients(loss, batch), gradients(expected, batch))


@every_objective
@few
@given(any_batch)
def test_micro_batches_of_whole_groups_add_up_to_the_batch(
    objective: Objective, formula: object, batch: ObjectiveBatch
) -> None:
    loss, metrics = objective(batch)
    parts = [objective(select_rows(batch, torch.tensor(rows_of(batch, group)))) for group in range(batch.num_groups)]
    total = torch.stack([part_loss for part_loss, _ in parts]).sum()
    close(total, loss)
    all_close(gradients(total, batch), gradients(loss, batch))
    summed, whole = reduce_metrics([part_metrics for _, part_metrics in parts]), reduce_metrics([metrics])
    assert summed.keys() == whole.keys()
    for name, value in whole.items():
        assert abs(summed[name] - value) <= 1e-6 * max(1.0, abs(value)), name


@every_objective
@few
@given(any_batch, st.integers(0, 2**31 - 1))
def test_order_of_rows_has_no_effect(objective: Objective, formula: object, batch: ObjectiveBatch, seed: int) -> None:
    if isinstance(objective, OnlineDpo):  # of equal rewards the first row counts
        batch = replace(batch, rewards=torch.arange(len(batch.rewards), dtype=torch.float64))
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    loss, shuffled = objective(batch)[0], objective(select_rows(batch, order))[0]
    close(shuffled, loss)
    all_close(gradients(shuffled, batch), gradients(loss, batch))


@every_objective
@few
@given(any_batch, st.sampled_from([float("nan"), float("inf"), -1e30]))
def test_padding_has_no_effect_on_loss_gradients_and_metrics(
    objective: Objective, formula: object, batch: ObjectiveBatch, garbage: float
) -> None:
    outside = ~batch.completion_mask
    padded = replace(
        batch,
        policy_logprobs=batch.policy_logprobs.detach().masked_fill(outside, garbage).requires_grad_(),
        reference_logprobs=batch.reference_logprobs.masked_fill(outside, -garbage),
        behavior_logprobs=batch.behavior_logprobs.masked_fill(outside, garbage),
    )
    (loss, metrics), (padded_loss, padded_metrics) = objective(batch), objective(padded)
    assert padded_loss.item() == loss.item()
    for ours, theirs in zip(gradients(padded_loss, padded), gradients(loss, batch), strict=True):
        assert torch.equal(ours, theirs)
    assert reduce_metrics([padded_metrics]) == reduce_metrics([metrics])


@every_objective
@few
@given(any_batch, st.sampled_from([-3000.0, 3000.0]))
def test_policy_thousands_of_nats_away_gives_finite_numbers(
    objective: Objective, formula: object, batch: ObjectiveBatch, distance: float
) -> None:
    for name in ("behavior_logprobs", "reference_logprobs"):
        far = replace(batch, **{name: batch.policy_logprobs.detach() + distance})
        loss, _ = objective(far)
        assert torch.isfinite(loss)
        assert all(torch.isfinite(gradient).all() for gradient in gradients(loss, far))


@few
@given(any_batch)
def test_learned_log_z_that_equals_the_estimate_gives_the_estimates_loss_and_gradient(batch: ObjectiveBatch) -> None:
    settled = replace(batch, log_z=balance_residual(batch)[1].requires_grad_())
    loss, expected = TrajectoryBalance(log_z="learned")(settled)[0], TrajectoryBalance()(settled)[0]
    close(loss, expected)
    of_policy, of_log_z = gradients(loss, settled)
    close(of_policy, gradients(expected, settled)[0])
    # And there log Z is at rest: the estimate is its optimum.
    scale = max(1.0, (batch.rewards.abs().max() / batch.beta).item())
    torch.testing.assert_close(of_log_z, torch.zeros_like(of_log_z), rtol=0, atol=1e-9 * scale)


@few
@given(any_batch)
def test_gradient_of_learned_log_z_is_beta_times_its_distance_from_the_estimate(batch: ObjectiveBatch) -> None:
    loss = TrajectoryBalance(log_z="learned")(batch)[0]
    share = torch.bincount(batch.group_index, minlength=batch.num_groups).double() / batch.num_trajectories_global
    close(gradients(loss, batch)[1], batch.beta * share * (of(batch) - balance_residual(batch)[1]).detach())


@few
@given(any_batch)
def test_kimi_at_the_reference_has_the_gradient_of_trajectory_balance(batch: ObjectiveBatch) -> None:
    at_reference = replace(batch, policy_logprobs=batch.reference_logprobs.clone().requires_grad_())
    all_close(
        gradients(Kimi()(at_reference)[0], at_reference), gradients(TrajectoryBalance()(at_reference)[0], at_reference)
    )


@few
@given(any_batch)
def test_tba_prime_on_policy_is_trajectory_balance_over_the_sequence_length(batch: ObjectiveBatch) -> None:
    """With pi_old = pi_theta the ratio is 1, both KL terms have one mean, and only the normaliser differs."""
    on_policy = replace(batch, behavior_logprobs=batch.policy_logprobs.detach())
    lengths = batch.num_prompt_tokens + batch.completion_mask.sum(dim=1)
    ours, balance = (
        gradients(objective(on_policy)[0], on_policy)[0] for objective in (TbaPrime(kl_clamp=1e3), TrajectoryBalance())
    )
    close(ours, balance / lengths[:, None])

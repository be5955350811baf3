"""Identities of Trajectory Balance on batches of any shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.trajectory_balance import TrajectoryBalance, balance_residual
from tests.support.objective_batches import batches, random_batch, select_rows
from tests.support.reference_formulas import log_partition, paper_loss, policy_gradient_surrogate, tempered_loss

few = settings(max_examples=25)
objective = TrajectoryBalance()


def loss_of(batch: ObjectiveBatch) -> Tensor:
    return objective(batch)[0]


def gradient(loss: Tensor, batch: ObjectiveBatch) -> Tensor:
    (result,) = torch.autograd.grad(loss, batch.policy_logprobs)
    return result


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@few
@given(batches)
def test_loss_and_gradient_are_half_beta_times_those_of_the_papers_formula(batch: ObjectiveBatch) -> None:
    loss, expected = loss_of(batch), batch.beta / 2 * paper_loss(batch)
    close(loss, expected)
    close(gradient(loss, batch), gradient(expected, batch))


@pytest.mark.fault("R-01")
@few
@given(batches)
def test_log_z_of_each_prompt_is_that_of_eq_4(batch: ObjectiveBatch) -> None:
    close(balance_residual(batch)[1], torch.stack(log_partition(batch)).detach())


@few
@given(batches)
def test_gradient_is_the_mean_baseline_policy_gradient_in_reward_units(batch: ObjectiveBatch) -> None:
    close(gradient(loss_of(batch), batch), gradient(policy_gradient_surrogate(batch), batch))


@few
@given(batches)
def test_gradient_without_stop_gradient_is_the_same_for_whole_groups(batch: ObjectiveBatch) -> None:
    through_log_z = batch.beta / 2 * paper_loss(batch, stop_gradient=False)
    close(gradient(loss_of(batch), batch), gradient(through_log_z, batch))


@few
@given(batches, st.floats(-5, 5))
def test_loss_is_zero_and_at_rest_where_the_policy_is_the_tilted_reference(batch: ObjectiveBatch, shift: float) -> None:
    # log pi = log ref + r / beta - log Z, solved for the rewards; every prompt has its own log Z.
    with torch.no_grad():
        log_ratio = (batch.policy_logprobs - batch.reference_logprobs).where(batch.completion_mask, 0.0).sum(dim=1)
    log_z_of_prompts = shift * torch.arange(1, batch.num_groups + 1, dtype=torch.float64)
    optimal = replace(batch, rewards=batch.beta * (log_ratio + log_z_of_prompts[batch.group_index]))
    loss = loss_of(optimal)
    assert 0.0 <= loss.item() < 1e-20
    close(gradient(loss, optimal), torch.zeros_like(batch.policy_logprobs))
    close(balance_residual(optimal)[1], log_z_of_prompts)


@few
@given(batches)
def test_loss_is_never_negative(batch: ObjectiveBatch) -> None:
    assert loss_of(batch).item() >= 0.0


@few
@given(batches, st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_constant_added_to_all_rewards_of_a_prompt_changes_nothing(batch: ObjectiveBatch, shifts: list[float]) -> None:
    shift = torch.tensor(shifts, dtype=torch.float64)[batch.group_index]
    loss, shifted = loss_of(batch), loss_of(replace(batch, rewards=batch.rewards + shift))
    torch.testing.assert_close(shifted, loss, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient(shifted, batch), gradient(loss, batch), rtol=1e-7, atol=1e-9)


@pytest.mark.fault("R-01", "R-04")
@few
@given(batches, st.integers(0, 2**31 - 1))
def test_order_of_rows_has_no_effect(batch: ObjectiveBatch, seed: int) -> None:
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    shuffled = select_rows(batch, order)
    close(loss_of(shuffled), loss_of(batch))
    close(gradient(loss_of(shuffled), batch), gradient(loss_of(batch), batch))


@few
@given(batches, st.sampled_from([float("nan"), float("inf"), -1e30]))
def test_padding_has_no_effect_on_loss_gradient_and_metrics(batch: ObjectiveBatch, garbage: float) -> None:
    outside = ~batch.completion_mask
    padded = replace(
        batch,
        policy_logprobs=batch.policy_logprobs.detach().masked_fill(outside, garbage).requires_grad_(),
        reference_logprobs=batch.reference_logprobs.masked_fill(outside, -garbage),
        behavior_logprobs=batch.behavior_logprobs.masked_fill(outside, garbage),
    )
    (loss, metrics), (padded_loss, padded_metrics) = objective(batch), objective(padded)
    assert padded_loss.item() == loss.item()
    assert torch.equal(gradient(padded_loss, padded), gradient(loss, batch))
    assert reduce_metrics([padded_metrics]) == reduce_metrics([metrics])


@pytest.mark.fault("I-40")
@few
@given(batches, st.integers(0, 3))
def test_prompts_do_not_influence_one_another(batch: ObjectiveBatch, group: int) -> None:
    group = min(group, batch.num_groups - 1)
    others = batch.group_index != group
    disturbed = replace(batch, rewards=torch.where(others, 100.0 * batch.rewards + 7.0, batch.rewards))
    residual, log_z = balance_residual(batch)
    disturbed_residual, disturbed_log_z = balance_residual(disturbed)
    assert disturbed_log_z[group] == log_z[group]
    assert torch.equal(disturbed_residual[~others], residual[~others])


@few
@given(batches)
def test_micro_batches_of_whole_groups_add_up_to_the_batch(batch: ObjectiveBatch) -> None:
    loss, metrics = objective(batch)
    rows = [(batch.group_index == group).nonzero().squeeze(1) for group in range(batch.num_groups)]
    parts = [objective(select_rows(batch, part)) for part in rows]
    total = torch.stack([part_loss for part_loss, _ in parts]).sum()
    close(total, loss)
    close(gradient(total, batch), gradient(loss, batch))
    summed, whole = reduce_metrics([part_metrics for _, part_metrics in parts]), reduce_metrics([metrics])
    assert summed.keys() == whole.keys()
    for name, value in whole.items():
        assert abs(summed[name] - value) <= 1e-6 * max(1.0, abs(value)), name


@few
@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.integers(0, 1000))
def test_gradient_at_the_reference_does_not_depend_on_beta(group_sizes: list[int], seed: int) -> None:
    gradients = []
    for beta in (0.004, 0.014, 1.0):
        batch = random_batch(group_sizes, beta=beta, seed=seed)
        at_reference = replace(batch, policy_logprobs=batch.reference_logprobs.clone().requires_grad_())
        gradients.append(gradient(loss_of(at_reference), at_reference))
    close(gradients[1], gradients[0])
    close(gradients[2], gradients[0])


@few
@given(batches)
def test_log_z_estimate_is_what_a_learned_log_z_would_converge_to(batch: ObjectiveBatch) -> None:
    """The optimum of eq. 3 in a free log Z of each prompt, by one Newton step on the quadratic."""
    with torch.no_grad():
        ratio = (batch.policy_logprobs - batch.reference_logprobs).where(batch.completion_mask, 0.0).sum(dim=1)
    learned = torch.zeros(batch.num_groups, dtype=torch.float64, requires_grad=True)
    loss = (learned[batch.group_index] + ratio - batch.rewards / batch.beta).square().sum()
    (slope,) = torch.autograd.grad(loss, learned)
    optimum = learned.detach() - slope / (2 * batch.group_index.bincount(minlength=batch.num_groups))
    close(balance_residual(batch)[1], optimum)


temperatures = st.sampled_from([0.5, 1.0, 1.2, 2.0])


@few
@given(batches, temperatures, temperatures, st.booleans())
def test_tempered_loss_is_half_beta_times_temperature_times_the_formula(
    batch: ObjectiveBatch, gamma: float, temperature: float, learns_log_z: bool
) -> None:
    learned = torch.linspace(-1.0, 1.0, batch.num_groups, dtype=torch.float64, requires_grad=True)
    log_z = learned if learns_log_z else None
    tempered = replace(
        batch,
        beta=temperature * batch.beta,
        reference_exponent=1.0 / (gamma * temperature),
        log_z=log_z,
    )
    loss, _ = TrajectoryBalance(log_z="learned" if learns_log_z else "vargrad")(tempered)
    formula = tempered_loss(batch, gamma=gamma, temperature=temperature, beta=batch.beta, log_z=log_z)
    expected = batch.beta * temperature / 2 * formula
    close(loss, expected)
    leaves = [batch.policy_logprobs, *([learned] if learns_log_z else [])]
    for actual, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        close(actual, wanted)


@few
@given(batches)
def test_exponent_of_one_changes_no_bit(batch: ObjectiveBatch) -> None:
    residual, log_z = balance_residual(batch)
    log_ratio = batch.sequence_log_ratio(batch.policy_logprobs, batch.reference_logprobs)
    assert torch.equal(residual, log_z[batch.group_index] - (batch.rewards / batch.beta - log_ratio))


@pytest.mark.fault("I-24")
@few
@given(batches, st.floats(-3.0, 3.0))
def test_logprobs_of_the_sampler_have_no_effect(batch: ObjectiveBatch, bias: float) -> None:
    """However the engine renormalises or rounds them: any data teaches, whoever drew it."""
    biased = replace(batch, behavior_logprobs=batch.behavior_logprobs + bias)
    assert loss_of(biased).item() == loss_of(batch).item()
    assert torch.equal(gradient(loss_of(biased), batch), gradient(loss_of(batch), batch))

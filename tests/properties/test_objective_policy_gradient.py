"""Published formulas and identities of the policy-gradient objectives, on batches of any shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tbactl.config.objectives import build_objective
from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tests.support import reference_formulas as plain
from tests.support.objective_batches import batches, random_batch, select_rows

few = settings(max_examples=10)


# Published formulas ---------------------------------------------------------------------------------------------------


def reinforce(batch: ObjectiveBatch, *, baseline: str = "group") -> Tensor:
    rewards = plain.rewards_with_kl(batch, batch.policy_logprobs)
    return plain.score_function_loss(batch, plain.advantages_of(batch, rewards, baseline=baseline), weights=None)


def rloo(batch: ObjectiveBatch, *, weights: Callable[[ObjectiveBatch, int], list[float]] | None = None) -> Tensor:
    rewards = plain.rewards_with_kl(batch, batch.policy_logprobs)
    rows = range(len(batch.rewards))
    return plain.score_function_loss(
        batch,
        plain.advantages_of(batch, rewards, baseline="others"),
        weights=None if weights is None else [weights(batch, row) for row in rows],
    )


def token_weights(batch: ObjectiveBatch, row: int) -> list[float]:
    return [min((policy - old).exp().item(), 2.0) for policy, _, old in plain.token_triples(batch, row)]


def sequence_weights(batch: ObjectiveBatch, row: int) -> list[float]:
    pairs = plain.token_triples(batch, row)
    ratio = torch.tensor([(policy - old).item() for policy, _, old in pairs], dtype=torch.float64).sum().exp()
    return [min(ratio.item(), 2.0)] * len(pairs)


def proximal_rloo(batch: ObjectiveBatch, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    rewards = plain.rewards_with_kl(batch, batch.behavior_logprobs)
    advantages = plain.advantages_of(batch, rewards, baseline="others")
    return plain.sequence_surrogate_loss(batch, advantages, low=low, high=high)


def ppo_clip(batch: ObjectiveBatch, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    rewards = plain.rewards_with_kl(batch, batch.behavior_logprobs)
    advantages = plain.advantages_of(batch, rewards, baseline="group")
    return token_mean(batch, plain.token_surrogates(batch, advantages, low=low, high=high, has_kl=False))


def grpo(batch: ObjectiveBatch, *, is_token_mean: bool = False, is_scaled: bool = True) -> Tensor:
    advantages = plain.advantages_of(batch, list(batch.rewards), baseline="group")
    if is_scaled:
        deviations = [group_std(batch, owner) for owner in range(batch.num_groups)]
        owners = batch.group_index.tolist()
        advantages = [value / (deviations[owner] + 1e-4) for value, owner in zip(advantages, owners, strict=True)]
    terms = plain.token_surrogates(batch, advantages, low=0.2, high=0.2, has_kl=True)
    if is_token_mean:
        return token_mean(batch, terms)
    means = [sum(row) / len(row) for row in terms if row]
    return zero(batch) - sum(means) / len(terms)


def group_std(batch: ObjectiveBatch, group: int) -> Tensor:
    rewards = batch.rewards[plain.rows_of(batch, group)]
    return rewards.std() if len(rewards) > 1 else torch.zeros((), dtype=torch.float64)


def dr_grpo(batch: ObjectiveBatch, *, has_kl: bool = True) -> Tensor:
    advantages = plain.advantages_of(batch, list(batch.rewards), baseline="group")
    terms = plain.token_surrogates(batch, advantages, low=0.2, high=0.2, has_kl=has_kl)
    return zero(batch) - sum(sum(row) for row in terms) / len(terms) / batch.max_completion_tokens


def token_mean(batch: ObjectiveBatch, terms: list[list[Tensor]]) -> Tensor:
    flat = [term for row in terms for term in row]
    return zero(batch) - sum(flat) / max(len(flat), 1)


def zero(batch: ObjectiveBatch) -> Tensor:
    return batch.policy_logprobs[:0].sum()


@dataclass(frozen=True)
class Case:
    kind: str
    options: Mapping[str, Any]
    formula: Callable[[ObjectiveBatch], Tensor]
    has_baseline: bool = True

    def build(self) -> Objective:
        return build_objective(self.kind, self.options)

    def __str__(self) -> str:
        return "-".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])


CASES = [
    Case("reinforce", {}, reinforce),
    Case("reinforce", {"baseline": "zero"}, lambda batch: reinforce(batch, baseline="none"), has_baseline=False),
    Case("rloo", {}, rloo),
    Case("rloo", {"importance_sampling_cap": 2.0}, lambda batch: rloo(batch, weights=token_weights)),
    Case(
        "rloo",
        {"importance_sampling_cap": 2.0, "importance_sampling_level": "sequence"},
        lambda batch: rloo(batch, weights=sequence_weights),
    ),
    Case("proximal-rloo", {}, proximal_rloo),
    Case("proximal-rloo", {"clip_low": 0.9, "clip_high": 3.0}, lambda batch: proximal_rloo(batch, low=0.9, high=3.0)),
    Case("ppo-clip", {}, ppo_clip),
    Case("ppo-clip", {"clip_low": 0.5, "clip_high": 4.0}, lambda batch: ppo_clip(batch, low=0.5, high=4.0)),
    Case("grpo", {}, grpo),
    Case("grpo", {"loss_type": "dapo"}, lambda batch: grpo(batch, is_token_mean=True)),
    Case("grpo", {"scale_rewards": False}, lambda batch: grpo(batch, is_scaled=False)),
    Case("dr-grpo", {}, dr_grpo),
    Case("dr-grpo", {"kl_in_loss": False}, lambda batch: dr_grpo(batch, has_kl=False)),
]
# For properties that do not need all options of a kind.
EACH = [
    Case("reinforce", {}, reinforce),
    Case("rloo", {"importance_sampling_cap": 2.0, "importance_sampling_level": "sequence"}, rloo),
    Case("proximal-rloo", {}, proximal_rloo),
    Case("ppo-clip", {}, ppo_clip),
    Case("grpo", {}, grpo),
    Case("grpo", {"loss_type": "dapo", "importance_sampling_cap": 2.0}, grpo),
    Case("dr-grpo", {}, dr_grpo),
]
each = pytest.mark.parametrize("case", EACH, ids=str)


def gradient(loss: Tensor, batch: ObjectiveBatch) -> Tensor:
    (result,) = torch.autograd.grad(loss, batch.policy_logprobs, retain_graph=True)
    return result


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
@few
@given(batch=batches)
def test_loss_and_gradient_are_those_of_the_published_formula(case: Case, batch: ObjectiveBatch) -> None:
    loss, expected = case.build()(batch)[0], case.formula(batch)
    close(loss, expected)
    close(gradient(loss, batch), gradient(expected, batch))


@each
@few
@given(batch=batches)
def test_micro_batches_of_whole_groups_add_up_to_the_batch(case: Case, batch: ObjectiveBatch) -> None:
    objective = case.build()
    loss, metrics = objective(batch)
    rows = [(batch.group_index == group).nonzero().squeeze(1) for group in range(batch.num_groups)]
    parts = [objective(select_rows(batch, part)) for part in rows]
    total = torch.stack([part_loss for part_loss, _ in parts]).sum()
    close(total, loss)
    close(gradient(total, batch), gradient(loss, batch))
    summed, whole = reduce_metrics([part_metrics for _, part_metrics in parts]), reduce_metrics([metrics])
    assert summed == pytest.approx(whole, rel=1e-6, abs=1e-6)
    if batch.num_tokens_global:
        assert whole["objective/loss/mean"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)


@each
@few
@given(batch=batches, seed=st.integers(0, 2**31 - 1))
def test_order_of_rows_has_no_effect(case: Case, batch: ObjectiveBatch, seed: int) -> None:
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    loss, shuffled = case.build()(batch)[0], case.build()(select_rows(batch, order))[0]
    close(shuffled, loss)
    close(gradient(shuffled, batch), gradient(loss, batch))


@each
@few
@given(batch=batches, garbage=st.sampled_from([float("nan"), float("inf"), -1e30]))
def test_padding_has_no_effect_on_loss_gradient_and_metrics(case: Case, batch: ObjectiveBatch, garbage: float) -> None:
    outside = ~batch.completion_mask
    padded = replace(
        batch,
        policy_logprobs=batch.policy_logprobs.detach().masked_fill(outside, garbage).requires_grad_(),
        reference_logprobs=batch.reference_logprobs.masked_fill(outside, -garbage),
        behavior_logprobs=batch.behavior_logprobs.masked_fill(outside, garbage),
    )
    (loss, metrics), (padded_loss, padded_metrics) = case.build()(batch), case.build()(padded)
    assert padded_loss.item() == loss.item()
    assert torch.equal(gradient(padded_loss, padded), gradient(loss, batch))
    assert reduce_metrics([padded_metrics]) == reduce_metrics([metrics])


extreme_rewards = st.sampled_from([1e6, -1e6, 0.0, 1.0, 1e-6, 0.1])
distances = st.sampled_from([0.0, 30.0, 100.0, 5000.0])


@each
@few
@given(batch=batches, rewards=st.lists(extreme_rewards, min_size=20, max_size=20), data=st.data())
def test_extreme_rewards_and_policies_far_apart_leave_everything_finite_in_float32(
    case: Case, batch: ObjectiveBatch, rewards: list[float], data: st.DataObject
) -> None:
    shape = batch.policy_logprobs.shape

    def logprobs(distance: float) -> Tensor:
        # Any token may be thousands of nats away.
        far = torch.rand(shape, generator=torch.Generator().manual_seed(int(distance))) < 0.5
        return torch.where(far, -distance, -1.0)

    extreme = replace(
        batch,
        policy_logprobs=logprobs(data.draw(distances)).requires_grad_(),
        reference_logprobs=logprobs(data.draw(distances)),
        behavior_logprobs=logprobs(data.draw(distances)),
        rewards=torch.tensor(rewards[: shape[0]]),
    )
    loss, metrics = case.build()(extreme)
    slope = gradient(loss, extreme)
    assert slope.dtype == torch.float32
    assert torch.isfinite(loss) and torch.isfinite(slope).all()
    assert not slope[~extreme.completion_mask].any()
    assert all(torch.isfinite(metric.moments).all() for metric in metrics.values())


@pytest.mark.fault("I-40")
@each
@few
@given(batch=batches, shifts=st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_constant_added_to_all_rewards_of_a_prompt_changes_nothing(
    case: Case, batch: ObjectiveBatch, shifts: list[float]
) -> None:
    shift = torch.tensor(shifts, dtype=torch.float64)[batch.group_index]
    loss, shifted = case.build()(batch)[0], case.build()(replace(batch, rewards=batch.rewards + shift))[0]
    torch.testing.assert_close(shifted, loss, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient(shifted, batch), gradient(loss, batch), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", ["rloo", "proximal-rloo", "ppo-clip", "reinforce"])
@given(num_groups=st.integers(1, 4), seed=st.integers(0, 1000))
@few
def test_groups_of_one_trajectory_teach_nothing(kind: str, num_groups: int, seed: int) -> None:
    batch = random_batch([1] * num_groups, seed=seed)
    loss, _ = build_objective(kind, {})(batch)
    assert loss.item() == 0.0
    assert not gradient(loss, batch).any()


@pytest.mark.parametrize("kind", ["grpo", "dr-grpo"])
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), reward=extreme_rewards, seed=st.integers(0, 1000))
@few
def test_equal_rewards_teach_nothing_but_the_kl_term(kind: str, sizes: list[int], reward: float, seed: int) -> None:
    batch = random_batch(sizes, seed=seed)
    # As the trainer has them: float32, where the mean of equal numbers may differ from them.
    batch = replace(batch, rewards=torch.full_like(batch.rewards, reward, dtype=torch.float32))
    loss, _ = build_objective(kind, {"kl_in_loss": False})(batch)
    assert loss.item() == 0.0
    assert not gradient(loss, batch).any()


# Identities where the data is on-policy -------------------------------------------------------------------------------

on_policy = st.tuples(st.integers(2, 5), st.integers(1, 3), st.sampled_from([0.004, 0.1, 1.0]), st.integers(0, 10_000))


def on_policy_batch(shape: tuple[int, int, float, int]) -> ObjectiveBatch:
    size, num_groups, beta, seed = shape
    batch = random_batch([size] * num_groups, beta=beta, seed=seed)
    return replace(batch, behavior_logprobs=batch.policy_logprobs.detach())


def gradient_of(kind: str, batch: ObjectiveBatch, **options: Any) -> Tensor:
    return gradient(build_objective(kind, options)(batch)[0], batch)


@few
@given(batches)
def test_reinforce_with_mean_baseline_has_the_gradient_of_trajectory_balance_on_any_data(batch: ObjectiveBatch) -> None:
    close(gradient_of("reinforce", batch), gradient(TrajectoryBalance()(batch)[0], batch))


@few
@given(on_policy)
def test_all_are_one_policy_gradient_on_policy_up_to_known_factors(shape: tuple[int, int, float, int]) -> None:
    batch = on_policy_batch(shape)
    expected, size = gradient_of("reinforce", batch), shape[0]
    close(gradient_of("rloo", batch), size / (size - 1) * expected)
    close(gradient_of("proximal-rloo", batch), size / (size - 1) * expected)
    close(gradient_of("ppo-clip", batch) * batch.num_tokens_global / len(batch.rewards), expected)
    close(gradient_of("reinforce", batch, importance_sampling_cap=1.0), expected)


@few
@given(on_policy)
def test_grpo_family_is_reinforce_without_kl_on_policy_up_to_lengths(shape: tuple[int, int, float, int]) -> None:
    batch = on_policy_batch(shape)
    at_reference = replace(batch, reference_logprobs=batch.policy_logprobs.detach())
    expected = gradient_of("reinforce", at_reference)
    close(gradient_of("dr-grpo", at_reference) * batch.max_completion_tokens, expected)
    lengths = batch.completion_mask.sum(dim=1, keepdim=True)
    close(gradient_of("grpo", at_reference, scale_rewards=False) * lengths, expected)
    capped = gradient_of("grpo", at_reference, scale_rewards=False, loss_type="dapo", importance_sampling_cap=3.0)
    close(capped * batch.num_tokens_global / len(batch.rewards), expected)


# Fields ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_required_fields_are_exactly_those_that_the_loss_depends_on(case: Case) -> None:
    batch = random_batch([3, 4], seed=1)
    # Near on-policy: where everything is clipped, nothing depends on anything.
    near = batch.policy_logprobs.detach() + 0.1 * torch.randn_like(batch.behavior_logprobs)
    batch = replace(batch, behavior_logprobs=near)
    changes: dict[str, Any] = {
        "policy_logprobs": batch.policy_logprobs.detach().mul(0.99).requires_grad_(),
        "reference_logprobs": batch.reference_logprobs * 0.9,
        "behavior_logprobs": batch.behavior_logprobs * 0.99,
        "completion_mask": batch.completion_mask.roll(1, dims=0),
        "rewards": batch.rewards.square(),
        "group_index": batch.group_index.roll(1),
        "num_prompt_tokens": batch.num_prompt_tokens + 1,
        "num_tokens_global": batch.num_tokens_global + 1,
        "max_completion_tokens": batch.max_completion_tokens + 1,
        "beta": 2 * batch.beta,
        "log_z": torch.ones(2, dtype=torch.float64),
    }
    objective = case.build()

    def outcome(batch: ObjectiveBatch) -> tuple[float, list[list[float]]]:
        loss = objective(batch)[0]
        return loss.item(), gradient(loss, batch).tolist()

    before = outcome(batch)
    read = {name for name, value in changes.items() if outcome(replace(batch, **{name: value})) != before}
    # Declared with a baseline in mind; without one the loss does not look at it.
    unread = set() if case.has_baseline else {"group_index"}
    assert read == objective.required_fields - unread

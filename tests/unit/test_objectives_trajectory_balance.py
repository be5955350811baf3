from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from gfn.gflownet.trajectory_balance import LogPartitionVarianceGFlowNet
from torch import Tensor

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.trajectory_balance import TrajectoryBalance, balance_residual
from tests.support.objective_batches import one_token_batch, random_batch
from tests.support.reference_formulas import paper_loss

METRIC_NAMES = {
    "objective/loss/mean",
    "objective/residual/mean_abs",
    "objective/residual/rms",
    "objective/log_z/mean",
    "objective/log_z/std",
    "objective/reward/mean",
    "objective/advantage/std",
    "objective/equal_reward_groups/share",
    "objective/kl/mean",
    "objective/kl_k3/mean",
    "objective/kl_per_token/mean",
    "objective/kl_k3_per_token/mean",
    "objective/entropy_estimate/mean",
    "objective/behavior_logprob_difference/mean_abs",
    "objective/behavior_logprob_difference/p50",
    "objective/behavior_logprob_difference/p95",
    "objective/behavior_ratio_outside/share",
    "objective/effective_sample_size/share",
}


@pytest.mark.fault("I-40", "R-01")
def test_two_prompts_in_one_micro_batch_give_two_log_z() -> None:
    # The reference code's reshape mixes these into [5, 5, 5, 5].
    batch = one_token_batch(policy=[-1.0] * 4, rewards=[10.0, 10.0, 0.0, 0.0], group_index=[0, 0, 1, 1])
    residual, log_z = balance_residual(batch)
    assert log_z.tolist() == [10.0, 0.0]
    assert log_z[batch.group_index].tolist() == [10.0, 10.0, 0.0, 0.0]
    assert residual.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_loss_and_gradient_of_a_hand_computed_group() -> None:
    # own log Z = log ref - log pi + r / beta = [2, 0] - [-1, 1] = [3, -1]; mean 1; residuals [-2, 2]; A = [1, -1].
    batch = one_token_batch(
        policy=[-3.0, -1.0], reference=[-2.0, -2.0], rewards=[1.0, 0.0], group_index=[0, 0], beta=0.5
    )
    residual, log_z = balance_residual(batch)
    loss, _ = TrajectoryBalance()(batch)
    loss.backward()
    assert (log_z.tolist(), residual.tolist()) == ([1.0], [-2.0, 2.0])
    assert loss.item() == pytest.approx(0.5 / 2 * 4.0)
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-1.0 / 2, 1.0 / 2])


def test_group_of_one_trajectory_has_exactly_no_residual_and_no_gradient() -> None:
    batch = replace(random_batch([1, 1, 1], beta=0.003), num_trajectories_global=7)
    loss, _ = TrajectoryBalance()(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert batch.policy_logprobs.grad is not None
    assert not batch.policy_logprobs.grad.any()


def test_equal_rewards_teach_nothing_at_the_reference_and_lead_back_to_it_elsewhere() -> None:
    at_reference = one_token_batch(policy=[-1.0, -2.0], rewards=[1.0, 1.0], group_index=[0, 0])
    away = one_token_batch(policy=[-1.0, -3.0], reference=[-2.0, -2.0], rewards=[1.0, 1.0], group_index=[0, 0])
    for batch, expected in ((at_reference, [0.0, 0.0]), (away, [0.5, -0.5])):
        TrajectoryBalance()(batch)[0].backward()
        assert batch.policy_logprobs.grad is not None
        assert batch.policy_logprobs.grad.flatten().tolist() == expected


def test_empty_completion_counts_with_log_ratio_zero() -> None:
    batch = random_batch([2], seed=1)
    batch = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask), rewards=torch.tensor([1.0, 0.0]))
    residual, _ = balance_residual(batch)
    assert residual.tolist() == pytest.approx([-5.0, 5.0])


def test_float32_keeps_the_gradient_at_a_small_beta() -> None:
    exact = random_batch([8, 8], num_tokens=40, beta=0.004, seed=3)
    rounded = replace(
        exact,
        policy_logprobs=exact.policy_logprobs.detach().float().requires_grad_(),
        reference_logprobs=exact.reference_logprobs.float(),
        behavior_logprobs=exact.behavior_logprobs.float(),
        rewards=exact.rewards.float(),
    )
    for batch in (exact, rounded):
        TrajectoryBalance()(batch)[0].backward()
    assert exact.policy_logprobs.grad is not None and rounded.policy_logprobs.grad is not None
    torch.testing.assert_close(rounded.policy_logprobs.grad.double(), exact.policy_logprobs.grad, rtol=1e-4, atol=1e-7)


def test_descent_on_all_answers_reaches_the_tilted_reference() -> None:
    """A policy over six one-token answers; K = 6 covers them all, sampled by nobody: far off-policy."""
    reference = torch.log_softmax(torch.tensor([0.5, -0.3, 0.1, 1.0, -1.0, 0.0], dtype=torch.float64), dim=0)
    rewards, beta = [1.0, 0.0, 0.5, 0.0, 1.0, 0.2], 0.5
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    template = one_token_batch(
        policy=[0.0] * 6, reference=reference.tolist(), rewards=rewards, group_index=[0] * 6, beta=beta
    )
    for _ in range(400):
        batch = replace(template, policy_logprobs=torch.log_softmax(theta, dim=0)[:, None])
        loss, metrics = TrajectoryBalance()(batch)
        (slope,) = torch.autograd.grad(loss, theta)
        theta.data -= 5.0 * slope
    tilted = reference + torch.tensor(rewards, dtype=torch.float64) / beta
    torch.testing.assert_close(torch.softmax(theta, dim=0), torch.softmax(tilted, dim=0), rtol=1e-4, atol=1e-5)
    assert loss.item() < 1e-9
    # At the optimum the estimate is the true log-partition function.
    assert reduce_metrics([metrics])["objective/log_z/mean"] == pytest.approx(tilted.logsumexp(dim=0).item(), abs=1e-4)


def test_metrics_of_a_hand_computed_batch() -> None:
    batch = one_token_batch(
        policy=[-1.0, -1.0, -2.0],
        reference=[-1.5, -1.0, -2.0],
        behavior=[-1.0, -1.05, -1.5],
        rewards=[1.0, 0.0, 1.0],
        group_index=[0, 0, 1],
        beta=1.0,
    )
    _, metrics = TrajectoryBalance()(batch)
    values = reduce_metrics([metrics])
    weights = [math.exp(0.0), math.exp(0.05), math.exp(-0.5)]
    assert values.keys() == METRIC_NAMES
    # Quantiles come from bins.
    assert values.pop("objective/behavior_logprob_difference/p50") == pytest.approx(0.05, rel=0.03)
    assert values.pop("objective/behavior_logprob_difference/p95") == pytest.approx(0.5, rel=0.03)
    # own log Z [0.5, 0 | 1]: residuals [-0.25, 0.25, 0].
    assert values == pytest.approx(
        {
            "objective/loss/mean": 0.0625 / 3,
            "objective/residual/mean_abs": 0.5 / 3,
            "objective/residual/rms": math.sqrt(0.125 / 3),
            "objective/log_z/mean": 0.625,
            "objective/log_z/std": 0.375,
            "objective/reward/mean": 2 / 3,
            "objective/advantage/std": math.sqrt(0.5 / 3),
            "objective/equal_reward_groups/share": 0.5,
            "objective/kl/mean": 0.5 / 3,
            "objective/kl_k3/mean": (math.exp(-0.5) - 1 + 0.5) / 3,
            "objective/kl_per_token/mean": 0.5 / 3,
            "objective/kl_k3_per_token/mean": (math.exp(-0.5) - 1 + 0.5) / 3,
            "objective/entropy_estimate/mean": 4 / 3,
            "objective/behavior_logprob_difference/mean_abs": 0.55 / 3,
            "objective/behavior_ratio_outside/share": 1 / 3,
            "objective/effective_sample_size/share": sum(weights) ** 2 / (3 * sum(w * w for w in weights)),
        }
    )


def test_metrics_stay_finite_when_policy_and_behavior_are_thousands_of_nats_apart() -> None:
    batch = one_token_batch(
        policy=[-3000.0, -1.0],
        reference=[-1.0, -3000.0],
        behavior=[-1.0, -3000.0],
        rewards=[0.0, 1.0],
        group_index=[0, 0],
    )
    _, metrics = TrajectoryBalance()(batch)
    values = reduce_metrics([metrics])
    assert all(math.isfinite(value) for value in values.values())
    assert values["objective/effective_sample_size/share"] == pytest.approx(0.5)


def test_metrics_hold_no_graph() -> None:
    _, metrics = TrajectoryBalance()(random_batch([2, 3]))
    assert not any(metric.moments.requires_grad for metric in metrics.values())


def test_options_are_refused_with_the_place_where_beta_belongs() -> None:
    with pytest.raises(ConfigError, match=r"objective\.options\.beta: .* did you mean 'objective\.beta'\?"):
        TrajectoryBalance(beta=0.1)


def test_one_prompt_agrees_with_the_log_partition_variance_of_torchgfn() -> None:
    batch = random_batch([6], num_tokens=4, beta=0.2, seed=5)
    zero_filled = batch.policy_logprobs.where(batch.completion_mask, 0.0)
    reference = batch.reference_logprobs.where(batch.completion_mask, 0.0).sum(dim=1)

    class GivenLogProbs(LogPartitionVarianceGFlowNet):
        """Their loss on our numbers: log P_F is the policy, log P_B = 0 because a text has one parent."""

        def get_pfs_and_pbs(self, trajectories: object, recalculate_all_logprobs: bool = True) -> tuple[Tensor, Tensor]:
            return zero_filled.T, torch.zeros_like(zero_filled.T)

    theirs = GivenLogProbs(pf=None, pb=None, constant_pb=True).loss(
        None, None, log_rewards=reference + batch.rewards / batch.beta
    )
    ours, _ = TrajectoryBalance()(batch)
    torch.testing.assert_close(paper_loss(batch), theirs)
    torch.testing.assert_close(ours, batch.beta / 2 * theirs)
    (their_gradient,) = torch.autograd.grad(batch.beta / 2 * theirs, batch.policy_logprobs)
    (our_gradient,) = torch.autograd.grad(ours, batch.policy_logprobs)
    torch.testing.assert_close(our_gradient, their_gradient)


def test_two_prompts_differ_from_the_one_batch_wide_centring_of_torchgfn() -> None:
    """Why one log Z for a batch is wrong here: prompts of different difficulty would be pushed against each other."""
    batch: ObjectiveBatch = one_token_batch(policy=[-1.0] * 4, rewards=[1.0, 1.0, 0.0, 0.0], group_index=[0, 0, 1, 1])
    one_group = replace(batch, group_index=torch.zeros(4, dtype=torch.long), num_groups=1)
    assert TrajectoryBalance()(batch)[0].item() == 0.0
    assert TrajectoryBalance()(one_group)[0].item() == pytest.approx(0.125)


def test_tempered_target_is_where_the_residual_vanishes_and_where_descent_leads() -> None:
    """Over six completions, all sampled: the minimum is pi_ref^(1 / (gamma T)) exp(r / (beta T)) / Z."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0)
    rewards = torch.randn(6, generator=generator, dtype=torch.float64)
    gamma, temperature, beta = 1.2, 1.5, 0.8
    target = ((reference / gamma + rewards / beta) / temperature).log_softmax(0)

    def batch_of(logprobs: Tensor) -> ObjectiveBatch:
        made = one_token_batch(
            policy=[0.0] * 6, reference=reference.tolist(), rewards=rewards.tolist(), group_index=[0] * 6
        )
        return replace(
            made,
            policy_logprobs=logprobs[:, None],
            beta=beta * temperature,
            reference_exponent=1 / (gamma * temperature),
        )

    residual, log_z = balance_residual(batch_of(target))
    assert residual.abs().max().item() < 1e-12
    plain = (reference / gamma + rewards / beta) / temperature
    assert log_z.item() == pytest.approx(torch.logsumexp(plain, 0).item(), rel=1e-12)

    logits = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value, _ = TrajectoryBalance()(batch_of(logits.log_softmax(0)))
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(logits.detach().log_softmax(0), target, rtol=0, atol=1e-6)

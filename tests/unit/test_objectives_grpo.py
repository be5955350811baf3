from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tbactl.errors import ConfigError
from tbactl.objectives.grpo import Grpo
from tbactl.objectives.metrics import reduce_metrics
from tests.support.objective_batches import one_token_batch
from tests.support.trl_losses import assert_same_loss_and_gradient, equal_groups, grpo_loss


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("scale_rewards", [True, False])
def test_loss_and_gradient_are_those_of_trl(size: int, loss_type: str, scale_rewards: bool) -> None:
    batch = equal_groups(size, seed=size)
    ours, metrics = Grpo(loss_type=loss_type, scale_rewards=scale_rewards)(batch)
    theirs = grpo_loss(batch, loss_type=loss_type, scale_rewards="group" if scale_rewards else "none", beta=batch.beta)
    assert_same_loss_and_gradient(ours, theirs, batch)
    assert 0.05 < reduce_metrics([metrics])["objective/clipped/share"] < 0.95


def test_loss_with_other_clip_range_and_without_kl_is_that_of_trl() -> None:
    batch = equal_groups(3, seed=7)
    ours, _ = Grpo(clip_low=0.1, clip_high=0.28, kl_in_loss=False, loss_type="dapo")(batch)
    theirs = grpo_loss(batch, loss_type="dapo", beta=0.0, clip_low=0.1, clip_high=0.28)
    assert_same_loss_and_gradient(ours, theirs, batch)


def test_truncated_importance_weights_over_all_tokens_are_the_cispo_of_trl() -> None:
    batch = equal_groups(3, seed=8)
    ours, metrics = Grpo(loss_type="dapo", importance_sampling_cap=1.3)(batch)
    assert_same_loss_and_gradient(ours, grpo_loss(batch, loss_type="cispo", beta=batch.beta, clip_high=1.3), batch)
    assert 0.05 < reduce_metrics([metrics])["objective/clipped/share"] < 0.95


def test_ties_and_extreme_rewards_are_treated_as_by_trl() -> None:
    batch = equal_groups(3, seed=9)
    rewards = torch.tensor([1e6, 1e6, 1e6, -1e6, 1e6, 0.0, 0.1, 0.1, 0.1], dtype=torch.float64)
    batch = replace(batch, rewards=rewards)
    assert_same_loss_and_gradient(Grpo()(batch)[0], grpo_loss(batch, loss_type="grpo", beta=batch.beta), batch)


def test_loss_of_a_hand_computed_group() -> None:
    # Rewards 1, 0: A = +-0.5 / (std + 1e-4), std = sqrt(0.5). Ratios 1.5 (clipped to 1.2) and 1.
    batch = one_token_batch(
        policy=[math.log(0.6), -1.0],
        behavior=[math.log(0.4), -1.0],
        reference=[math.log(0.3), -1.0],
        rewards=[1.0, 0.0],
        group_index=[0, 0],
        beta=0.1,
    )
    loss, metrics = Grpo()(batch)
    advantage = 0.5 / (math.sqrt(0.5) + 1e-4)
    k3 = 0.5 - math.log(0.5) - 1
    assert loss.item() == pytest.approx((-1.2 * advantage + 0.1 * k3 + advantage) / 2)
    assert reduce_metrics([metrics])["objective/clipped/share"] == 0.5
    (slope,) = torch.autograd.grad(loss, batch.policy_logprobs)
    # The clipped token feels the reference only: d k3 / d log pi = 1 - pi_ref / pi.
    assert slope.flatten().tolist() == pytest.approx([0.1 * 0.5 / 2, advantage / 2])


def test_loss_type_that_depends_on_how_the_batch_is_cut_is_not_offered() -> None:
    with pytest.raises(ConfigError, match=r'options\.loss_type = "bnpo" of objective .grpo.: must be one of'):
        Grpo(loss_type="bnpo")


def test_token_far_from_the_reference_keeps_a_gradient_back_to_it_in_float32() -> None:
    far = one_token_batch(policy=[-200.0], reference=[-1.0], rewards=[1.0], group_index=[0])
    far = replace(
        far,
        policy_logprobs=far.policy_logprobs.detach().float().requires_grad_(),
        reference_logprobs=far.reference_logprobs.float(),
    )
    loss, _ = Grpo()(far)
    (slope,) = torch.autograd.grad(loss, far.policy_logprobs)
    assert torch.isfinite(loss) and torch.isfinite(slope).all()
    assert slope.item() < 0, "descent raises the log-prob towards the reference's"


@pytest.mark.parametrize("size", [3, 5, 7, 11])
def test_equal_rewards_give_no_advantage_though_their_float32_mean_differs_from_them(size: int) -> None:
    batch = one_token_batch(policy=[-1.0] * size, rewards=[0.0] * size, group_index=[0] * size)
    batch = replace(batch, rewards=torch.full((size,), 1e6 + 0.7))
    loss, _ = Grpo(kl_in_loss=False)(batch)
    (slope,) = torch.autograd.grad(loss, batch.policy_logprobs)
    assert loss.item() == 0.0 and not slope.any()

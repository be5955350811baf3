from __future__ import annotations

from dataclasses import replace

import pytest

from tbactl.objectives.dr_grpo import DrGrpo
from tests.support.objective_batches import one_token_batch
from tests.support.trl_losses import assert_same_loss_and_gradient, equal_groups, grpo_loss


@pytest.mark.parametrize("size", [2, 3, 5])
def test_loss_and_gradient_are_those_of_trl(size: int) -> None:
    batch = replace(equal_groups(size, seed=size), max_completion_tokens=50)
    theirs = grpo_loss(batch, loss_type="dr_grpo", scale_rewards="none", beta=batch.beta)
    assert_same_loss_and_gradient(DrGrpo()(batch)[0], theirs, batch)


def test_loss_of_the_paper_has_no_kl_term() -> None:
    batch = equal_groups(3, seed=1)
    theirs = grpo_loss(batch, loss_type="dr_grpo", scale_rewards="none", beta=0.0)
    assert_same_loss_and_gradient(DrGrpo(kl_in_loss=False)(batch)[0], theirs, batch)


def test_gradient_of_a_hand_computed_group_is_advantage_over_longest_completion() -> None:
    batch = one_token_batch(policy=[-1.0, -2.0], rewards=[3.0, 1.0], group_index=[0, 0])
    batch = replace(batch, max_completion_tokens=10)
    DrGrpo()(batch)[0].backward()
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-1.0 / 2 / 10, 1.0 / 2 / 10])


def test_weight_beyond_the_cap_keeps_its_gradient() -> None:
    batch = one_token_batch(policy=[-1.0, -1.0], behavior=[-4.0, -1.0], rewards=[1.0, 0.0], group_index=[0, 0])
    DrGrpo(importance_sampling_cap=2.0)(batch)[0].backward()
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-2.0 * 0.5 / 2, 0.5 / 2])

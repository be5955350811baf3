from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.kimi import Kimi
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tests.support.objective_batches import one_token_batch, random_batch


def gradient(batch: ObjectiveBatch, **options: object) -> Tensor:
    (result,) = torch.autograd.grad(Kimi(**options)(batch)[0], batch.policy_logprobs)
    return result.flatten()


def test_loss_gradient_and_metrics_of_a_hand_computed_group() -> None:
    # Log-ratios [-1, 2], mean reward 0.5: beta residual = 0.5 + 0.5 [-1, 2] - [1, 0] = [-1, 1.5].
    batch = one_token_batch(
        policy=[-3.0, -1.0], reference=[-2.0, -3.0], rewards=[1.0, 0.0], group_index=[0, 0], beta=0.5
    )
    loss, metrics = Kimi()(batch)
    assert loss.item() == pytest.approx((1.0 + 2.25) / (2 * 0.5) / 2)
    assert gradient(batch).tolist() == pytest.approx([-1.0 / 2, 1.5 / 2])
    values = reduce_metrics([metrics])
    assert values["objective/loss/mean"] == pytest.approx(loss.item())
    assert values["objective/residual/mean_abs"] == pytest.approx(1.25)
    assert values["objective/residual/rms"] == pytest.approx(math.sqrt(3.25 / 2))


def test_equal_rewards_pull_each_trajectory_to_its_reference() -> None:
    """Where trajectory balance, which subtracts the mean log-ratio, is content with equal log-ratios."""
    batch = one_token_batch(policy=[-1.0, -1.0], reference=[-2.0, -2.0], rewards=[1.0, 1.0], group_index=[0, 0])
    assert gradient(batch).tolist() == pytest.approx([0.5, 0.5])
    (of_balance,) = torch.autograd.grad(TrajectoryBalance()(batch)[0], batch.policy_logprobs)
    assert of_balance.flatten().tolist() == [0.0, 0.0]


def test_group_of_one_trajectory_is_pulled_to_its_reference() -> None:
    batch = one_token_batch(policy=[-1.0, -2.0], reference=[-1.5, -2.0], rewards=[7.0, -7.0], group_index=[0, 1])
    assert gradient(batch).tolist() == pytest.approx([0.25, 0.0])


def test_constant_added_to_all_rewards_changes_nothing() -> None:
    batch = random_batch([3, 4], seed=4)
    shifted = replace(batch, rewards=batch.rewards + 5.0)
    torch.testing.assert_close(gradient(shifted), gradient(batch))


def test_importance_weights_are_capped_constants() -> None:
    batch = one_token_batch(
        policy=[-3.0, -1.0],
        reference=[-2.0, -3.0],
        behavior=[-2.0, -9.0],
        rewards=[1.0, 0.0],
        group_index=[0, 0],
        beta=0.5,
    )
    # Ratios 1/e and e^8, the latter cut at 3.
    values = reduce_metrics([Kimi(importance_sampling_cap=3.0)(batch)[1]])
    assert values["objective/clipped/share"] == 0.5
    assert gradient(batch, importance_sampling_cap=3.0).tolist() == pytest.approx([-math.exp(-1.0) / 2, 3 * 1.5 / 2])


def test_empty_completions_count_with_log_ratio_zero() -> None:
    batch = random_batch([2], seed=1, beta=0.1)
    empty = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask), rewards=torch.tensor([1.0, 0.0]))
    assert Kimi()(empty)[0].item() == pytest.approx(0.25 / 0.2)


def test_cap_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"importance_sampling_cap = 0\.5 .* must be at least 1"):
        Kimi(importance_sampling_cap=0.5)

from __future__ import annotations

import math

import pytest

from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.proximal_rloo import ProximalRloo
from tests.support.objective_batches import one_token_batch
from tests.support.trl_losses import assert_same_loss_and_gradient, equal_groups, rloo_loss


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.6, 1.5)])
def test_loss_and_gradient_are_those_of_trl(size: int, low: float, high: float) -> None:
    batch = equal_groups(size, seed=size)
    ours, metrics = ProximalRloo(clip_low=low, clip_high=high)(batch)
    assert_same_loss_and_gradient(ours, rloo_loss(batch, beta=batch.beta, clip_low=low, clip_high=high), batch)
    assert 0.0 < reduce_metrics([metrics])["objective/clipped/share"] < 1.0


def test_gradient_of_a_hand_computed_group() -> None:
    # KL of the behaviour policy: log 0.4 - log 0.2 and 0. R = [1 - 0.5 log 2, 0]; A = +-R_0 for K = 2.
    batch = one_token_batch(
        policy=[math.log(0.44), math.log(0.5)],
        behavior=[math.log(0.4), math.log(0.8)],
        reference=[math.log(0.2), math.log(0.8)],
        rewards=[1.0, 0.0],
        group_index=[0, 0],
        beta=0.5,
    )
    loss, metrics = ProximalRloo()(batch)
    loss.backward()
    advantage = 1.0 - 0.5 * math.log(2.0)
    # Ratio 1.1 is inside; 0.625 is below 0.8 with A < 0: clipped, no gradient.
    assert loss.item() == pytest.approx((-1.1 * advantage + 0.8 * advantage) / 2)
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-1.1 * advantage / 2, 0.0])
    assert reduce_metrics([metrics])["objective/clipped/share"] == 0.5

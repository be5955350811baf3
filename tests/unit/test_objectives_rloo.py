from __future__ import annotations

import pytest

from tbactl.errors import ConfigError
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.rloo import Rloo
from tests.support.objective_batches import one_token_batch
from tests.support.trl_losses import equal_groups, rloo_loss


def test_gradient_of_a_hand_computed_group() -> None:
    # KL 1, 0, 0: R = [2, 1, 0]. The others' means: 0.5, 1, 1.5.
    batch = one_token_batch(
        policy=[-1.0, -2.0, -3.0],
        reference=[-2.0, -2.0, -3.0],
        rewards=[3.0, 1.0, 0.0],
        group_index=[0, 0, 0],
        beta=1.0,
    )
    loss, _ = Rloo()(batch)
    loss.backward()
    assert loss.item() == pytest.approx((1.5 * 1.0 + 0.0 * 2.0 - 1.5 * 3.0) / 3)
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-0.5, 0.0, 0.5])


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_gradient_is_that_of_trl_on_policy(size: int) -> None:
    batch = equal_groups(size, seed=size)
    batch.behavior_logprobs.copy_(batch.policy_logprobs.detach())
    Rloo()(batch)[0].backward()
    ours = batch.policy_logprobs.grad
    assert ours is not None
    ours, batch.policy_logprobs.grad = ours.clone(), None
    rloo_loss(batch, beta=batch.beta).backward()
    theirs = batch.policy_logprobs.grad
    assert theirs is not None
    assert ours.flatten().tolist() == pytest.approx(theirs.flatten().tolist(), rel=1e-9, abs=1e-12)


def test_truncated_weight_scales_the_gradient_and_is_reported() -> None:
    batch = one_token_batch(policy=[-1.0, -1.0], behavior=[-3.0, -1.0], rewards=[1.0, 0.0], group_index=[0, 0])
    loss, metrics = Rloo(importance_sampling_cap=2.0)(batch)
    loss.backward()
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-2.0 / 2, 1.0 / 2])
    assert reduce_metrics([metrics])["objective/clipped/share"] == 0.5
    assert "objective/clipped/share" not in Rloo()(batch)[1]


def test_level_of_weights_that_are_off_is_refused() -> None:
    with pytest.raises(ConfigError, match="importance_sampling_level has no effect without importance_sampling_cap"):
        Rloo(importance_sampling_level="token")

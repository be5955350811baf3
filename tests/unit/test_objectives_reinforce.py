from __future__ import annotations

import pytest

from tbactl.objectives.reinforce import Reinforce
from tests.support.objective_batches import one_token_batch


@pytest.mark.parametrize(("baseline", "advantages"), [("group-mean", [1.0, -1.0]), ("zero", [2.0, 0.0])])
def test_gradient_of_a_hand_computed_group(baseline: str, advantages: list[float]) -> None:
    # KL 1, 0: R = [2, 0].
    batch = one_token_batch(
        policy=[-1.0, -3.0], reference=[-2.0, -3.0], rewards=[3.0, 0.0], group_index=[0, 0], beta=1.0
    )
    loss, _ = Reinforce(baseline=baseline)(batch)
    loss.backward()
    assert loss.item() == pytest.approx((advantages[0] * 1.0 + advantages[1] * 3.0) / 2)
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist() == pytest.approx([-advantages[0] / 2, -advantages[1] / 2])


def test_behavior_logprobs_are_required_only_where_weights_use_them() -> None:
    assert "behavior_logprobs" not in Reinforce().required_fields
    assert "behavior_logprobs" in Reinforce(importance_sampling_cap=2.0).required_fields

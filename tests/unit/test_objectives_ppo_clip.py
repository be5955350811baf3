from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.ppo_clip import PpoClip
from tests.support.objective_batches import one_token_batch


def test_gradient_of_a_hand_computed_group() -> None:
    # KL of the behaviour policy: log 2 and 0; R = [1 - log 2, 0], mean subtracted.
    batch = one_token_batch(
        policy=[math.log(0.8), math.log(0.2)],
        behavior=[math.log(0.4), math.log(0.25)],
        reference=[math.log(0.2), math.log(0.25)],
        rewards=[1.0, 0.0],
        group_index=[0, 0],
        beta=1.0,
    )
    batch = replace(batch, num_tokens_global=8)
    loss, metrics = PpoClip()(batch)
    loss.backward()
    advantage = (1.0 - math.log(2.0)) / 2
    # Ratio 2 is above 1.2 with A > 0: clipped. Ratio 0.8 is just inside.
    assert loss.item() == pytest.approx((-1.2 * advantage + 0.8 * advantage) / 8)
    assert batch.policy_logprobs.grad is not None
    assert batch.policy_logprobs.grad.flatten().tolist()[0] == 0.0
    assert reduce_metrics([metrics])["objective/clipped/share"] in (0.5, 1.0)


@pytest.mark.parametrize(
    ("ratio", "reward", "is_at_rest"),
    [(1.5, 1.0, True), (1.5, -1.0, False), (0.5, 1.0, False), (0.5, -1.0, True), (1.1, 1.0, False)],
)
def test_clipping_takes_the_gradient_only_where_the_ratio_moved_the_way_it_should(
    ratio: float, reward: float, is_at_rest: bool
) -> None:
    batch = one_token_batch(
        policy=[math.log(0.4 * ratio), -1.0],
        behavior=[math.log(0.4), -1.0],
        reference=[math.log(0.4), -1.0],
        rewards=[reward, 0.0],
        group_index=[0, 0],
    )
    loss, metrics = PpoClip()(batch)
    loss.backward()
    assert batch.policy_logprobs.grad is not None
    slope = batch.policy_logprobs.grad[0, 0].item()
    assert slope == pytest.approx(0.0 if is_at_rest else -ratio * reward / 2 / 2)
    assert reduce_metrics([metrics])["objective/clipped/share"] == (0.5 if is_at_rest else 0.0)

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.tba_prime import TbaPrime
from tests.support.objective_batches import one_token_batch, random_batch


def gradient(batch: ObjectiveBatch, **options: object) -> Tensor:
    (result,) = torch.autograd.grad(TbaPrime(**options)(batch)[0], batch.policy_logprobs)
    return result.flatten()


def test_loss_and_gradient_of_a_hand_computed_group() -> None:
    # KL of now [-1, 1], of the behaviour policy [0, 1] with mean 0.5; mean reward 0.5.
    # A = [0.5, -0.5] - 0.5 [-1.5, 0.5] = [1.25, -0.75]. Ratios [1/e, 1]. 3 prompt tokens + 1.
    batch = one_token_batch(
        policy=[-3.0, -1.0],
        reference=[-2.0, -2.0],
        behavior=[-2.0, -1.0],
        rewards=[1.0, 0.0],
        group_index=[0, 0],
        beta=0.5,
    )
    loss, _ = TbaPrime()(batch)
    terms = [-1.25 * math.exp(-1.0) / 4 / 2, 0.75 / 4 / 2]
    assert loss.item() == pytest.approx(sum(terms))
    # d ratio / d log pi = ratio, so each token's gradient is its own loss.
    assert gradient(batch).tolist() == pytest.approx(terms)


def test_importance_sampling_off_is_the_plain_policy_gradient() -> None:
    batch = one_token_batch(
        policy=[-3.0, -1.0], reference=[-3.0, -1.0], behavior=[-9.0, -1.0], rewards=[1.0, 0.0], group_index=[0, 0]
    )
    # KL of now 0; of the behaviour policy [-6, 0], mean -3: A = [0.5, -0.5] - 3 = [-2.5, -3.5].
    loss, _ = TbaPrime(importance_sampling=False)(batch)
    assert loss.item() == pytest.approx((-3.0 * 2.5 - 1.0 * 3.5) / 4 / 2)
    assert gradient(batch, importance_sampling=False).tolist() == pytest.approx([2.5 / 8, 3.5 / 8])


def test_share_of_cut_ratios_is_left_out_where_no_ratio_is_used() -> None:
    batch = one_token_batch(policy=[-1.0, -1.0], behavior=[-9.0, -1.0], rewards=[1.0, 0.0], group_index=[0, 0])
    assert reduce_metrics([TbaPrime()(batch)[1]])["objective/clipped/share"] == 0.5
    assert "objective/clipped/share" not in TbaPrime(importance_sampling=False)(batch)[1]


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [0.0, 1.0]])
def test_token_above_the_cap_has_no_gradient_whatever_its_advantage(rewards: list[float]) -> None:
    log_cap = math.log(8.0)
    batch = one_token_batch(
        policy=[-1.0, -1.0],
        behavior=[-1.0 - log_cap - 1e-6, -1.0 - log_cap + 1e-6],
        rewards=rewards,
        group_index=[0, 0],
    )
    above, below = gradient(batch).tolist()
    assert above == 0.0
    assert below != 0.0
    values = reduce_metrics([TbaPrime()(batch)[1]])
    assert values["objective/clipped/share"] == 0.5


def test_token_thousands_of_nats_above_its_behavior_has_a_finite_loss_and_no_gradient() -> None:
    batch = one_token_batch(policy=[-1.0, -1.0], behavior=[-4000.0, -1.0], rewards=[1.0, 0.0], group_index=[0, 0])
    assert math.isfinite(TbaPrime()(batch)[0].item())
    assert gradient(batch)[0].item() == 0.0


def test_kl_of_each_token_is_clamped_before_it_is_summed() -> None:
    # Two tokens of +30 and -5 nats: 10 - 5, not 25; the behaviour policy is the reference.
    policy = torch.tensor([[-1.0, -7.0], [-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-31.0, -2.0], [-1.0, -2.0]], dtype=torch.float64)
    batch = replace(
        random_batch([2], num_tokens=2),
        policy_logprobs=policy,
        reference_logprobs=reference,
        behavior_logprobs=reference,
        completion_mask=torch.ones(2, 2, dtype=torch.bool),
        rewards=torch.zeros(2, dtype=torch.float64),
        num_prompt_tokens=torch.tensor([2, 2]),
        beta=0.1,
    )
    slopes = gradient(batch, importance_sampling=False).reshape(2, 2)
    # A = -0.1 * 5 for both tokens; loss -log pi A / (2 + 2) / 2 trajectories.
    assert slopes[0].tolist() == pytest.approx([0.5 / 8, 0.5 / 8])
    assert slopes[1].tolist() == [0.0, 0.0]
    wide = gradient(batch, importance_sampling=False, kl_clamp=100.0).reshape(2, 2)
    assert wide[0].tolist() == pytest.approx([2.5 / 8, 2.5 / 8])


def test_mean_kl_is_that_of_the_behavior_policy() -> None:
    """On off-policy data the advantages of a group do not sum to zero: as published."""
    batch = one_token_batch(
        policy=[-1.0, -1.0], reference=[-2.0, -2.0], behavior=[-3.0, -3.0], rewards=[0.0, 0.0], group_index=[0, 0]
    )
    # KL of now 1, mean KL of the behaviour policy -1: A = -2 for both.
    assert gradient(batch, importance_sampling=False).tolist() == pytest.approx([2.0 / 8, 2.0 / 8])


def test_group_of_one_trajectory_on_policy_teaches_nothing() -> None:
    batch = one_token_batch(policy=[-1.0, -2.0], rewards=[3.0, 5.0], group_index=[0, 1])
    assert gradient(batch).tolist() == [0.0, 0.0]


def test_equal_rewards_at_the_reference_teach_nothing() -> None:
    batch = one_token_batch(policy=[-1.0, -2.0], rewards=[1.0, 1.0], group_index=[0, 0])
    assert gradient(batch).tolist() == [0.0, 0.0]


def test_empty_completions_have_no_loss_and_count_in_the_mean() -> None:
    batch = random_batch([3], seed=2)
    empty = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask))
    loss, _ = TbaPrime()(empty)
    assert loss.item() == 0.0
    assert not gradient(empty).any()


def test_float32_agrees_with_float64() -> None:
    exact = random_batch([8, 8], num_tokens=40, beta=0.005, seed=3)
    rounded = replace(
        exact,
        policy_logprobs=exact.policy_logprobs.detach().float().requires_grad_(),
        reference_logprobs=exact.reference_logprobs.float(),
        behavior_logprobs=exact.behavior_logprobs.float(),
        rewards=exact.rewards.float(),
    )
    torch.testing.assert_close(gradient(rounded).double(), gradient(exact), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio_cap": 0.5}, r"objective\.options\.ratio_cap = 0\.5 .* must be at least 1"),
        ({"kl_clamp": 0.0}, r"objective\.options\.kl_clamp = 0\.0 .* must be greater than 0"),
        ({"rato_cap": 8.0}, r"did you mean 'ratio_cap'\?"),
        ({"importance_sampling": False, "ratio_cap": 8.0}, "ratio_cap has no effect with importance_sampling = false"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TbaPrime(**options)

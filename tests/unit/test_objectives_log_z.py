from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gfn.gflownet.trajectory_balance import TBGFlowNet
from torch import Tensor

from tbactl.errors import ConfigError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.metrics import reduce_metrics
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tests.support.objective_batches import one_token_batch, random_batch

LEARNED = TrajectoryBalance(log_z="learned")


def with_log_z(batch: ObjectiveBatch, values: list[float]) -> ObjectiveBatch:
    return replace(batch, log_z=torch.tensor(values, dtype=batch.rewards.dtype, requires_grad=True))


def gradients(loss: Tensor, batch: ObjectiveBatch) -> tuple[Tensor, Tensor]:
    assert batch.log_z is not None
    of_policy, of_log_z = torch.autograd.grad(loss, (batch.policy_logprobs, batch.log_z))
    return of_policy, of_log_z


@pytest.mark.parametrize("group_sizes", [[6], [2, 4, 3]], ids=["one prompt", "three prompts"])
def test_loss_and_gradients_are_those_of_torchgfn(group_sizes: list[int]) -> None:
    values = [0.7, -1.3, 2.0][: len(group_sizes)]
    batch = with_log_z(random_batch(group_sizes, num_tokens=4, beta=0.2, seed=5), values)
    zero_filled = batch.policy_logprobs.where(batch.completion_mask, 0.0)
    reference = batch.reference_logprobs.where(batch.completion_mask, 0.0).sum(dim=1)

    class GivenLogProbs(TBGFlowNet):
        """Their loss on our numbers: log P_F is the policy, log P_B = 0 because a text has one parent."""

        def get_pfs_and_pbs(self, trajectories: object, recalculate_all_logprobs: bool = True) -> tuple[Tensor, Tensor]:
            return zero_filled.T, torch.zeros_like(zero_filled.T)

    class OfPrompt(torch.nn.Module):
        """Their log Z given a condition, which here is the prompt's number."""

        def forward(self, prompts: Tensor) -> Tensor:
            assert batch.log_z is not None
            return batch.log_z[prompts][:, None]

    given: Any = SimpleNamespace(states=SimpleNamespace(conditions=batch.group_index[None]))
    log_z: Any = OfPrompt()
    theirs = GivenLogProbs(pf=None, pb=None, logZ=log_z, constant_pb=True).loss(  # pyright: ignore[reportArgumentType]
        None,  # pyright: ignore[reportArgumentType]
        given,
        log_rewards=reference + batch.rewards / batch.beta,
    )
    ours, _ = LEARNED(batch)
    torch.testing.assert_close(ours, batch.beta / 2 * theirs, rtol=1e-9, atol=1e-12)
    for our, their in zip(gradients(ours, batch), gradients(batch.beta / 2 * theirs, batch), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-12)


def test_loss_gradients_and_metrics_of_a_hand_computed_group() -> None:
    # own log Z = [3, -1], its mean 1; learned 2: residuals [-1, 3], the error of log Z is 1.
    batch = with_log_z(
        one_token_batch(policy=[-3.0, -1.0], reference=[-2.0, -2.0], rewards=[1.0, 0.0], group_index=[0, 0], beta=0.5),
        [2.0],
    )
    loss, metrics = LEARNED(batch)
    assert loss.item() == pytest.approx(0.5 / 2 * 5.0)
    of_policy, of_log_z = gradients(loss, batch)
    assert of_policy.flatten().tolist() == pytest.approx([-0.25, 0.75])
    assert of_log_z.tolist() == pytest.approx([0.5])
    values = reduce_metrics([metrics])
    assert values["objective/log_z/mean"] == 2.0
    assert values["objective/log_z/std"] == 0.0
    assert values["objective/log_z_error/mean_abs"] == pytest.approx(1.0)
    assert values["objective/residual/mean_abs"] == pytest.approx(0.5 * 2.0)


def test_group_of_one_trajectory_teaches_policy_and_log_z() -> None:
    batch = with_log_z(one_token_batch(policy=[-1.0], rewards=[2.0], group_index=[0]), [0.0])
    of_policy, of_log_z = gradients(LEARNED(batch)[0], batch)
    assert (of_policy.item(), of_log_z.item()) == (-2.0, -2.0)


def test_equal_rewards_and_empty_completions_leave_nothing_once_log_z_is_learned() -> None:
    batch = random_batch([3], seed=1, beta=0.1)
    empty = replace(
        batch, completion_mask=torch.zeros_like(batch.completion_mask), rewards=torch.ones(3, dtype=torch.float64)
    )
    loss, _ = LEARNED(with_log_z(empty, [10.0]))
    assert loss.item() == pytest.approx(0.0, abs=1e-20)


def test_descent_teaches_policy_and_log_z_together() -> None:
    """A policy over six one-token answers, all of them given: the tilted reference, and the true log Z."""
    reference = torch.log_softmax(torch.tensor([0.5, -0.3, 0.1, 1.0, -1.0, 0.0], dtype=torch.float64), dim=0)
    rewards, beta = [1.0, 0.0, 0.5, 0.0, 1.0, 0.2], 0.5
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    log_z = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    template = one_token_batch(
        policy=[0.0] * 6, reference=reference.tolist(), rewards=rewards, group_index=[0] * 6, beta=beta
    )
    for _ in range(600):
        batch = replace(template, policy_logprobs=torch.log_softmax(theta, dim=0)[:, None], log_z=log_z)
        slopes = torch.autograd.grad(LEARNED(batch)[0], (theta, log_z))
        theta.data -= 5.0 * slopes[0]
        log_z.data -= 1.0 * slopes[1]
    tilted = reference + torch.tensor(rewards, dtype=torch.float64) / beta
    torch.testing.assert_close(torch.softmax(theta, dim=0), torch.softmax(tilted, dim=0), rtol=1e-4, atol=1e-5)
    assert log_z.item() == pytest.approx(tilted.logsumexp(dim=0).item(), abs=1e-4)


def test_head_is_asked_for_only_where_log_z_is_learned() -> None:
    assert "log_z" in LEARNED.required_fields
    assert "log_z" not in TrajectoryBalance().required_fields


def test_estimate_ignores_a_learned_log_z_in_the_batch() -> None:
    batch = random_batch([3, 2], seed=2)
    assert TrajectoryBalance()(with_log_z(batch, [9.0, -9.0]))[0].item() == TrajectoryBalance()(batch)[0].item()


def test_log_z_of_another_number_of_prompts_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"log_z must be \[2\], one for each prompt, got \[3\]"):
        with_log_z(random_batch([3, 2]), [0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_z_initial": 3.0}, 'log_z_initial without log_z = "learned" has no effect'),
        ({"log_z": "learnt"}, r"objective\.options\.log_z = \"learnt\""),
        ({"log_z": "learned", "log_z_learning_rate": 0.0}, "must be greater than 0"),
        ({"log_z": "learned", "log_z_initial": float("inf")}, "must be a finite number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrajectoryBalance(**options)

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from tbactl.errors import TaskError, TbactlError
from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tests.support.objective_batches import random_batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference_logprobs": torch.zeros(4, 3)}, r"reference_logprobs must be \[4, 5\] like policy_logprobs"),
        ({"completion_mask": torch.ones(5, 4, dtype=torch.bool)}, r"completion_mask must be \[4, 5\]"),
        ({"rewards": torch.zeros(3)}, r"rewards must be \[4\], one for each row, got \[3\]"),
        ({"group_index": torch.tensor([0, 0, 1])}, r"group_index must be \[4\]"),
        ({"group_index": torch.tensor([0, 0, 0, 0])}, r"every prompt in \[0, 2\) must own a row .* got \[0\]"),
        ({"group_index": torch.tensor([0, 1, 2, 1])}, r"no other index may occur; got \[0, 1, 2\]"),
        ({"num_groups": 3}, r"every prompt in \[0, 3\) must own a row"),
        ({"num_trajectories_global": 3}, "counts the whole step, so it is >= 4"),
        ({"num_groups_global": 1}, "num_groups_global counts the whole step, so it is >= 2"),
        ({"beta": 0.0}, "beta must be > 0, got 0.0"),
    ],
)
def test_batch_whose_parts_do_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    # Under the run-time shape checks of the tests, jaxtyping may refuse a wrong shape before our own assertion does.
    with pytest.raises((AssertionError, TypeError), match=rf"(?i){message}|type-check error"):
        replace(random_batch([2, 2]), **change)


def test_batch_of_half_precision_logprobs_is_refused_because_their_sums_would_be_off() -> None:
    batch = random_batch([2, 2])
    with pytest.raises(AssertionError, match=r"policy_logprobs must be float32 or float64, got torch\.bfloat16"):
        replace(batch, policy_logprobs=batch.policy_logprobs.bfloat16())


@pytest.mark.fault("I-29")
@pytest.mark.parametrize("name", ["policy_logprobs", "reference_logprobs", "behavior_logprobs"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_non_finite_logprob_of_a_completion_token_is_refused_by_name(name: str, value: float) -> None:
    batch = replace(random_batch([2, 3]), completion_mask=torch.ones(5, 5, dtype=torch.bool))
    logprobs = getattr(batch, name).detach().clone()
    logprobs[1, 4] = logprobs[1, 0] = logprobs[3, 2] = value
    with pytest.raises(TbactlError, match=f"{name} hold NaN or infinity in 2 of 5 trajectories"):
        replace(batch, **{name: logprobs})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_reward_is_the_tasks_error(value: float) -> None:
    with pytest.raises(TaskError, match="rewards hold NaN or infinity in 1 of 2 trajectories"):
        replace(random_batch([2]), rewards=torch.tensor([1.0, value]))


def test_fields_an_objective_requires_are_fields_of_the_batch() -> None:
    assert TrajectoryBalance.required_fields <= {field.name for field in fields(ObjectiveBatch)}

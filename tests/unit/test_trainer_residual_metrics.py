from __future__ import annotations

import pytest

from tbactl.trainer.residual_metrics import AGE_CLASSES, residual_metrics
from tbactl.types import Completion, Trajectory, TrajectoryGroup
from tests.support.documented_metrics import documented_metrics


def group_of_versions(*versions: int) -> TrajectoryGroup:
    return TrajectoryGroup(
        prompt_id=0,
        prompt_text="",
        prompt_token_ids=(1,),
        trajectories=tuple(
            Trajectory(
                uid=uid,
                reward=0.0,
                completion=Completion(
                    token_ids=(1,),
                    logprobs=(0.0,),
                    text="",
                    finish_reason="stop",
                    first_version=version,
                    last_version=version,
                ),
            )
            for uid, version in enumerate(versions)
        ),
        searcher=0,
        sequence_number=0,
    )


def test_residuals_are_averaged_by_age_and_without_their_sign() -> None:
    groups = [group_of_versions(10, 10, 7)]
    metrics = residual_metrics(groups, residuals={0: -1.0, 1: 3.0, 2: 0.5}, policy_version=10)
    assert metrics == {
        "objective/residual_age_0/mean_abs": 2.0,
        "objective/residual_age_2_to_3/mean_abs": 0.5,
    }


@pytest.mark.parametrize(
    ("age", "label"),
    [(0, "0"), (1, "1"), (3, "2_to_3"), (4, "4_to_7"), (15, "8_to_15"), (16, "from_16"), (999, "from_16")],
)
def test_every_age_has_its_class(age: int, label: str) -> None:
    metrics = residual_metrics([group_of_versions(0)], residuals={0: 1.0}, policy_version=age)
    assert list(metrics) == [f"objective/residual_age_{label}/mean_abs"]


def test_data_newer_than_the_policy_counts_as_new() -> None:
    metrics = residual_metrics([group_of_versions(5)], residuals={0: 1.0}, policy_version=3)
    assert list(metrics) == ["objective/residual_age_0/mean_abs"]


def test_all_classes_are_documented() -> None:
    versions = [100 - first for first in AGE_CLASSES]
    groups = [group_of_versions(*versions)]
    metrics = residual_metrics(groups, residuals=dict.fromkeys(range(len(versions)), 1.0), policy_version=100)
    assert len(metrics) == len(AGE_CLASSES)
    assert metrics.keys() <= documented_metrics()

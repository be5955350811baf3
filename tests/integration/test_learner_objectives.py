"""The objectives besides trajectory balance inside the real trainer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_groups

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama")


@pytest.mark.fault("R-04")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("reinforce", {}),
        ("rloo", {"importance_sampling_cap": 2.0}),
        ("proximal-rloo", {}),
        ("ppo-clip", {}),
        ("grpo", {}),
        ("grpo", {"loss_type": "dapo", "importance_sampling_cap": 2.0}),
        ("dr-grpo", {}),
        ("tba-prime", {}),
        ("kimi", {"importance_sampling_cap": 2.0}),
        ("online-dpo", {}),
    ],
)
def test_a_step_is_the_same_however_its_batch_is_cut(tmp_path, policy, kind: str, options: dict[str, Any]) -> None:
    from tbactl.trainer.learner import DeepSpeedLearner

    reports = []
    for budget_tokens in (80, 100_000):
        config = make_config(
            tmp_path,
            policy_directory=policy,
            policy={"path": str(policy)},
            trainer={"zero_stage": 1, "micro_batch_tokens": budget_tokens, "max_steps": 10},
            objective={"kind": kind, "options": options},
        )
        learner = DeepSpeedLearner(config)
        report = learner.update(make_groups(4, seed=1), beta=0.1, should_abort=lambda: False)
        learner.close()
        assert report is not None
        reports.append(report.metrics)
    cut, whole = reports
    assert cut["trainer/passes/sum"] > whole["trainer/passes/sum"] == 1
    for name in ("objective/loss/mean", "trainer/grad_norm/value"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4), name
    assert whole["trainer/grad_norm/value"] > 0

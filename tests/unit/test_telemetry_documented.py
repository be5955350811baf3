from __future__ import annotations

import pytest

from tbactl.config.tasks import reward_metrics
from tbactl.ipc.control_page import NUM_REWARD_METRICS
from tbactl.objectives.trajectory_balance import TrajectoryBalance
from tbactl.trainer.board import FROM_METRICS
from tests.support.documented_metrics import DOCUMENT, documented_metrics
from tests.support.objective_batches import one_token_batch
from tests.support.scripted_run import ScriptedRun


@pytest.mark.fault("I-71")
def test_every_metric_of_a_run_is_documented(tmp_path):
    run = ScriptedRun(tmp_path)
    run.run()
    emitted = {name for line in run.metrics() for name in line["metrics"]}
    assert len(emitted) > 30
    assert emitted <= documented_metrics()


def test_every_metric_on_the_control_page_is_documented():
    assert set(FROM_METRICS.values()) <= documented_metrics()


def test_every_row_of_the_tables_is_well_formed():
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(documented_metrics())


def test_unit_of_the_loss_of_trajectory_balance_is_how_it_scales():
    """Ten times as many reward units, beta (reward/nat) with them, are ten times the loss: reward to the power of 1."""

    def loss(unit):
        batch = one_token_batch(policy=[-1.0, -2.0], rewards=[unit, 0.0], group_index=[0, 0], beta=0.5 * unit)
        return TrajectoryBalance()(batch)[0].item()

    assert loss(10.0) == pytest.approx(10.0 * loss(1.0)) != 0.0
    assert "| `objective/loss/mean` | reward\u00b7nat |" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["math", "preference", "redteam"])
def test_what_the_rewards_of_a_shipped_task_say_is_documented_and_has_a_place(task):
    names = reward_metrics(task)
    assert 0 < len(names) <= NUM_REWARD_METRICS
    assert {f"searcher/reward_{name}/mean" for name in names} <= documented_metrics()

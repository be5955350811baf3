from __future__ import annotations

import math

import pytest

from tbactl.clock import FakeClock
from tbactl.ipc.control_page import ControlPage
from tbactl.searcher.status import Status


@pytest.fixture
def page(tmp_path):
    return ControlPage.create(tmp_path / "control", num_trainer_ranks=1, num_searchers=1)


def pass_time(status, clock, *, seconds, idle_share):
    """Turns of half a second, a share of each idle."""
    for _ in range(int(2 * seconds)):
        status.note_idle(0.5 * idle_share)
        clock.sleep(0.5)
        status.update(num_active_requests=0, ring_fill=0.0)


def test_idle_share_is_that_of_the_last_ten_seconds(page):
    clock = FakeClock()
    status = Status(page.searcher(0), clock=clock)
    pass_time(status, clock, seconds=30, idle_share=0.25)
    assert page.searcher(0).get_float("f_idle_fraction") == pytest.approx(0.25, abs=0.02)
    pass_time(status, clock, seconds=11, idle_share=0.75)
    assert page.searcher(0).get_float("f_idle_fraction") == pytest.approx(0.75, abs=0.05)


def test_waiting_for_the_run_to_begin_is_no_idling(page):
    clock = FakeClock()
    status = Status(page.searcher(0), clock=clock)
    pass_time(status, clock, seconds=60, idle_share=1.0)
    status.begin()
    pass_time(status, clock, seconds=2, idle_share=0.5)
    assert page.searcher(0).get_float("f_idle_fraction") == pytest.approx(0.5)


def test_loading_is_no_turn(page):
    clock = FakeClock()
    status = Status(page.searcher(0), clock=clock)
    clock.sleep(60)
    status.note_turn()
    status.update(num_active_requests=0, ring_fill=0.0)
    clock.sleep(60)
    status.begin()
    clock.sleep(0.5)
    status.note_turn()
    status.update(num_active_requests=0, ring_fill=0.0)
    assert page.searcher(0).get_float("f_longest_turn_s") == pytest.approx(0.5)


def test_means_of_what_rewards_say_are_shown_once_they_are_known(page):
    clock, slot = FakeClock(), page.searcher(0)
    status = Status(slot, clock=clock, reward_metrics=("toxicity", "success"))

    def update():
        clock.sleep(1.0)
        status.update(num_active_requests=0, ring_fill=0.0)

    update()
    assert slot.get("reward_metrics_known") == 0
    status.note_reward_metrics({"success": 1.0, "toxicity": math.nan, "unnamed": 3.0})
    status.note_reward_metrics({"success": 0.0})
    update()
    assert slot.get("reward_metrics_known") == 0b10
    assert slot.get_float("f_reward_metric_1") == pytest.approx(0.98)
    status.note_reward_metrics({"toxicity": 0.5})
    update()
    assert slot.get("reward_metrics_known") == 0b11
    assert slot.get_float("f_reward_metric_0") == 0.5

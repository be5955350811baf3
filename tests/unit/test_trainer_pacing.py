"""The bounds on samples per insert and the modes of intake, in whole scripted runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.errors import ChildFailedError
from tbactl.ipc.control_page import RunState
from tbactl.ipc.ring_file import ring_stats
from tbactl.trainer.pacing import Pacing
from tests.support.scripted_run import ScriptedRun, trainer_state

BATCH = 16
GROUP = 4


def pacing(*, trained, received, low=0.0, high=None):
    state = TrainerState(sampler_rng={}, stream_positions=[0])
    state.count(trajectories_trained=trained, trajectories_received=received)
    return Pacing(state=state, min_samples_per_insert=low, max_samples_per_insert=high)


def column(run, name):
    return [line["metrics"][name] for line in run.metrics()]


def hurry(run):
    """Let the searchers write twenty groups a turn; returns the list of writes that their rings refused."""
    refused = []
    for searcher in run.searchers:
        act, write = searcher.act, searcher._ring.try_write

        def try_write(payload, write=write):
            is_written = write(payload)
            if not is_written:
                refused.append(payload)
            return is_written

        def act_often(act=act):
            for _ in range(20):
                act()

        searcher._ring.try_write, searcher.act = try_write, act_often
    return refused


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 1000), st.floats(0.01, 100.0))
def test_allowed_batch_never_exceeds_the_upper_bound(trained, received, batch, high):
    if pacing(trained=trained, received=received, high=high).allows(batch):
        assert trained + batch <= high * received


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.integers(1, 1000))
def test_where_nobody_may_train_and_nothing_needs_to_be_taken_in_the_bounds_are_less_than_a_batch_apart(
    trained, received, low, more, batch
):
    bounds = pacing(trained=trained, received=received, low=low, high=low + more + 1e-9)
    if not bounds.allows(batch) and not bounds.has_caught_up:
        assert more * received < batch


def test_without_bounds_everything_is_allowed_and_taken_in():
    unbounded = pacing(trained=10**9, received=0)
    assert unbounded.allows(10**9) and unbounded.has_caught_up


@pytest.mark.parametrize("high", [0.4, 1.0])
def test_run_never_exceeds_max_samples_per_insert(tmp_path, high):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 20}, replay={"max_samples_per_insert": high})
    run.run()
    ratios = column(run, "replay/samples_per_insert/value")
    assert len(ratios) == 20
    assert max(ratios) <= high
    # The bound is what decides: without it the ratio is higher.
    assert ratios[-1] == pytest.approx(high, rel=0.2)


@pytest.mark.fault("I-17")
def test_run_without_a_bound_exceeds_it(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 20})
    run.run()
    assert max(column(run, "replay/samples_per_insert/value")) > 1.0


def test_waiting_for_the_bound_is_measured(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 4}, replay={"max_samples_per_insert": 0.1})
    slept = run.clock.monotonic_s()
    run.run()
    assert run.clock.monotonic_s() > slept
    assert column(run, "trainer/wait_s/sum")[-1] > 0


def test_waiting_for_the_bound_ends_with_the_run(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 50}, replay={"max_samples_per_insert": 1.0})

    def fall_silent_then_drain():
        if run.word("policy_version") >= 3:
            for searcher in run.searchers:
                searcher._ring.try_write = lambda payload: False
        if run.clock.monotonic_s() > 5.0:
            run.page.supervisor.set(run_state=RunState.DRAINING)

    run.on_turn = fall_silent_then_drain
    run.run()
    assert 3 <= run.word("policy_version") < 50
    assert trainer_state(run.config.layout.latest_checkpoint)["policy_version"] == run.word("policy_version")


def test_silent_searchers_end_the_wait_for_the_bound_and_it_is_named(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 50}, replay={"max_samples_per_insert": 1.0})

    def fall_silent():
        for searcher in run.searchers:
            searcher.is_silent = run.word("policy_version") >= 3

    run.on_turn = fall_silent
    with pytest.raises(ChildFailedError, match=r"waits for new trajectories \(replay.max_samples_per_insert = 1.0\)"):
        run.run()


def test_resumed_run_goes_on_with_the_totals_of_the_first(tmp_path):
    settings = {"trainer": {"max_steps": 20}, "replay": {"max_samples_per_insert": 0.5}}
    first = ScriptedRun(tmp_path / "first", **settings)
    first.ask(RunState.DRAINING, at_version=7)
    first.run()
    second = ScriptedRun(tmp_path / "second", resume=first.config.layout.latest_checkpoint, **settings)
    second.run()
    assert max(column(second, "replay/samples_per_insert/value")) <= 0.5


@pytest.mark.parametrize("low", [1.0, 2.0])
def test_data_waits_in_the_rings_while_the_rest_was_not_used_often_enough(tmp_path, low):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 30}, replay={"min_samples_per_insert": low})
    refused = hurry(run)
    run.run()
    received, trained = column(run, "intake/trajectories/total"), column(run, "trainer/trajectories/total")
    assert received[0] == 32  # the initial fill, whatever the bound
    for number in range(1, 30):
        # A group more at most than what was trained on before the step allows.
        assert received[number] <= max(32, trained[number - 1] / low) + GROUP
    assert received[-1] > 32
    assert refused, "a full ring must hold the searcher"


@pytest.mark.fault("I-17")
@pytest.mark.parametrize("low", [0.0, 1.0])
def test_searchers_far_faster_than_the_trainer_lose_no_group_and_memory_stays_bounded(tmp_path, low):
    settings = {"trainer": {"max_steps": 30}, "replay": {"capacity": 100, "min_samples_per_insert": low}}
    run = ScriptedRun(tmp_path, **settings)
    refused = hurry(run)
    run.run()
    rings = [ring_stats(run.config.shm.ring(index)) for index in range(2)]
    # Every group that a searcher believes delivered was received, once, or lies in its ring; none was passed over.
    assert sum(ring.num_read for ring in rings) == run.word("num_groups_received")
    assert run.word("num_trajectories_received") == GROUP * run.word("num_groups_received")
    for index, (searcher, ring) in enumerate(zip(run.searchers, rings, strict=True)):
        assert searcher.position == index + 2 * ring.num_written
        assert (ring.num_corrupt, ring.num_lost, ring.num_oversize) == (0, 0, 0)
    assert sum(ring.num_written for ring in rings) > 10 * 30, "ten groups for each step"
    assert max(column(run, "replay/trajectories/value")) <= 100
    assert bool(refused) == bool(low), "what is not taken in must hold the searchers"


def test_without_a_lower_bound_everything_is_taken_in(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 30})
    refused = hurry(run)
    run.run()
    assert column(run, "intake/trajectories/total")[-1] > 2000
    assert not refused


@pytest.mark.parametrize("bounds", [{}, {"max_samples_per_insert": 0.5}], ids=["free", "bounded"])
def test_at_sync_takes_in_only_at_steps_that_follow_a_sync(tmp_path, bounds):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 12}, sync={"period": 3}, replay={"intake": "at-sync", **bounds})
    run.run()
    received = column(run, "intake/trajectories/total")
    changes = [step for step in range(1, 12) if received[step] != received[step - 1]]
    assert changes == [3, 6, 9]  # versions before the step: multiples of the period
    assert max(column(run, "replay/samples_per_insert/value")) <= bounds.get("max_samples_per_insert", 10.0)


def test_at_sync_data_is_as_old_as_in_the_paper(tmp_path):
    run = ScriptedRun(
        tmp_path,
        trainer={"max_steps": 12},
        sync={"period": 3},
        replay={"intake": "at-sync", "on_policy_fraction": 1.0, "max_samples_per_insert": 1.0},
    )
    run.run()
    # k .. 2k - 1, but for what comes in during the wait for the bound, right after the sync.
    assert max(column(run, "replay/staleness/max")[3:]) <= 2 * 3 - 1


def test_at_sync_takes_in_between_when_there_is_nothing_else_to_draw(tmp_path):
    run = ScriptedRun(
        tmp_path,
        trainer={"max_steps": 8},
        sync={"period": 4},
        replay={"intake": "at-sync", "max_staleness": 4},
    )
    run.run()
    assert run.word("policy_version") == 8
    assert max(column(run, "replay/staleness/max")) <= 4


def test_fewer_wanted_than_there_are_come_from_all_searchers_in_turn(tmp_path):
    run = ScriptedRun(tmp_path, trainer={"max_steps": 40}, replay={"min_samples_per_insert": 2.0})
    hurry(run)
    run.run()
    state = trainer_state(run.checkpoint(38))
    assert abs(state["stream_positions"][0] - state["stream_positions"][1]) <= 3

"""What must be so in any queue of searchers and a trainer, whatever the numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbactl.errors import ConfigError
from tbactl.planning.processors import threads_of
from tbactl.planning.simulation import Simulation, simulate
from tests.support.planning import scenario

# The trainer is much faster than any searcher, and may use each trajectory once.
STARVED = {"replay__max_samples_per_insert": 1.0}
SLOW_TRAINER = {"train_s": 0.5}
# Searchers wait until the trainer has used what it has.
HELD = {"replay__min_samples_per_insert": 1.0, "searchers__ring_capacity_bytes": 4096}
# A ring holds one group.
LONG = {"completion_tokens": 100.0, "prompt_tokens": 100.0}


def test_one_searcher_without_a_limit_makes_one_over_its_cost():
    outcome = simulate(scenario(costs={"train_s": 1e-4}, trainer__max_steps=400, **STARVED))
    assert outcome.trajectories_per_s == pytest.approx(1 / 0.1, rel=0.02)
    assert outcome.searcher_idle == 0.0
    assert outcome.trainer_idle > 0.95


@pytest.mark.parametrize("num_searchers", [2, 5])
def test_starved_trainer_gets_what_all_searchers_make(num_searchers):
    outcome = simulate(
        scenario(num_searchers=num_searchers, costs={"train_s": 1e-4}, trainer__max_steps=400, **STARVED)
    )
    assert outcome.trajectories_per_s == pytest.approx(num_searchers / 0.1, rel=0.05)


def test_trainer_with_data_at_hand_takes_one_over_its_cost():
    outcome = simulate(scenario(num_searchers=8, trainer__max_steps=400))
    assert outcome.trained_per_s == pytest.approx(1 / 0.05, rel=0.02)
    assert outcome.steps_per_s == pytest.approx(1 / (16 * 0.05), rel=0.02)


def test_ranks_divide_the_trainers_work():
    one, two = (
        simulate(scenario(num_searchers=8, trainer__num_ranks=ranks, trainer__max_steps=400)) for ranks in (1, 2)
    )
    assert two.steps_per_s == pytest.approx(2 * one.steps_per_s, rel=0.03)


def test_groups_in_flight_are_rate_times_latency():
    # Little's law, over groups that have left the engine.
    simulation = Simulation(scenario(num_searchers=3, costs={"generate_spread": 0.5}, trainer__max_steps=400))
    simulation.run()
    for searcher in simulation.searchers:
        assert searcher.latency_s == pytest.approx(searcher.in_flight_s, rel=0.03)
        assert searcher.latency_s / searcher.num_finished == pytest.approx(4 * 4 * 0.1, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(
    num_searchers=st.integers(1, 6),
    generate_s=st.floats(0.01, 1.0),
    train_s=st.floats(0.01, 1.0),
    score_s=st.sampled_from([0.0, 0.02, 0.5]),
    spread=st.floats(0.0, 1.0),
    low=st.sampled_from([0.0, 0.5, 1.0]),
    high=st.sampled_from([None, 1.0, 3.0]),
    mode=st.sampled_from(["async", "sync"]),
    intake=st.sampled_from(["continuous", "at-sync"]),
    period=st.integers(1, 4),
    num_prompts=st.sampled_from([0, 1, 7]),
    mean_share=st.sampled_from([1.0, 0.8, 0.4]),
)
def test_nothing_is_lost_and_nothing_is_exceeded(
    num_searchers, generate_s, train_s, score_s, spread, low, high, mode, intake, period, num_prompts, mean_share
):
    costs = {"generate_s": generate_s, "train_s": train_s, "score_s": score_s, "generate_spread": spread}
    simulation = Simulation(
        scenario(
            num_searchers=num_searchers,
            costs=costs | {"mean_share": mean_share},
            about=LONG | {"num_prompts": num_prompts},
            mode=mode,
            searchers__ring_capacity_bytes=32768,
            sync__period=1 if mode == "sync" else period,
            replay__intake=intake,
            replay__min_samples_per_insert=low,
            replay__max_samples_per_insert=high,
            trainer__max_steps=12,
        )
    )
    outcome = simulation.run()
    searchers, trainer = simulation.searchers, simulation.trainer
    assert sum(searcher.num_started for searcher in searchers) == (
        sum(searcher.num_in_flight + searcher.backlog for searcher in searchers)
        + simulation.world.num_in_rings
        + trainer.num_received // 4
    )
    # As many as the loop may have open: 4 whole groups, or parts of 8.
    most = 4 if mode == "sync" or mean_share == 1.0 else 8
    assert all(searcher.load <= 4 and searcher.num_in_flight <= most for searcher in searchers)
    assert all(searcher.backlog <= 4 + most for searcher in searchers)
    assert all(len(ring) <= simulation.scenario.ring_groups for ring in simulation.world.rings)
    assert trainer.num_trained == 16 * 12 and trainer.num_new <= trainer.num_trained
    if high is not None and mode == "async":
        assert outcome.samples_per_insert <= high
    for share in (outcome.trainer_idle, outcome.searcher_idle, outcome.sync_share):
        assert 0.0 <= share <= 1.0 + 1e-9
    assert 0.0 <= outcome.staleness_p50 <= outcome.staleness_p95 <= outcome.staleness_max < 12


@pytest.mark.parametrize("mean_share", [0.8, 0.5])
@pytest.mark.parametrize("num_groups", [1, 2, 16])
def test_completions_of_different_lengths_make_groups_slower_not_fewer(mean_share, num_groups):
    costs = {"train_s": 1e-4, "generate_spread": 0.3, "mean_share": mean_share}
    simulation = Simulation(
        scenario(costs=costs, searchers__max_concurrent_groups=num_groups, trainer__max_steps=400, **STARVED)
    )
    assert simulation.run().trajectories_per_s == pytest.approx(1 / 0.1, rel=0.03)
    [searcher] = simulation.searchers
    stretch = searcher.latency_s / searcher.num_finished / (num_groups * 4 * 0.1)
    # One group alone takes its time; of many, each as long as its longest completion.
    low, high = {1: (0.99, 1.01), 2: (1.05, 1 / mean_share), 16: (0.92 / mean_share, 1.08 / mean_share)}[num_groups]
    assert low < stretch < high


def test_same_seed_gives_the_same_outcome_and_another_seed_another():
    first, again, other = (
        simulate(scenario(num_searchers=3, costs={"generate_spread": 0.4}, about={"seed": seed})) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_sync_mode_is_on_policy_and_adds_the_two_sides_up():
    outcome = simulate(scenario(mode="sync", sync__period=1, replay__on_policy_fraction=1.0))
    assert outcome.staleness_max == 0.0
    assert outcome.samples_per_insert == 1.0
    assert 1 / outcome.steps_per_s == pytest.approx(16 * (0.1 + 0.05), rel=1e-3)
    assert outcome.searcher_idle == pytest.approx(0.05 / 0.15, rel=0.01)


def test_async_mode_is_faster_than_sync_by_the_smaller_side():
    sync = simulate(scenario(mode="sync", sync__period=1))
    asynchronous = simulate(scenario(trainer__max_steps=400, **STARVED))
    assert asynchronous.steps_per_s / sync.steps_per_s == pytest.approx(0.15 / 0.1, rel=0.03)


def test_more_searchers_never_slow_the_trainer_until_it_is_the_limit():
    outcomes = [simulate(scenario(num_searchers=n, trainer__max_steps=200, **STARVED)) for n in range(1, 7)]
    rates = [outcome.new_per_s for outcome in outcomes]
    assert all(later >= 0.98 * earlier for earlier, later in pairwise(rates))
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.06)
    assert rates[-1] == pytest.approx(1 / 0.05, rel=0.03)


def test_held_searchers_wait_for_the_trainer():
    outcome = simulate(scenario(num_searchers=4, costs=SLOW_TRAINER, about=LONG, trainer__max_steps=200, **HELD))
    assert outcome.trajectories_per_s == pytest.approx(1 / 0.5, rel=0.25)
    assert outcome.searcher_idle > 0.8


def test_longer_sync_period_makes_data_older():
    staleness = [
        simulate(scenario(num_searchers=3, sync__period=period, trainer__max_steps=200)).staleness_mean
        for period in (1, 4, 16)
    ]
    assert staleness == sorted(staleness) and staleness[2] > staleness[0] + 3


def test_newest_data_is_a_group_and_a_sync_old():
    # One group in flight, done within a step, and drawn in the next.
    outcome = simulate(
        scenario(
            num_searchers=8,
            searchers__max_concurrent_groups=1,
            costs={"generate_s": 0.01},
            replay__on_policy_fraction=1.0,
            sync__period=1,
        )
    )
    assert 0.0 < outcome.staleness_p50 <= 1.0


def test_staleness_limit_holds():
    outcome = simulate(scenario(num_searchers=2, replay__on_policy_fraction=0.2, replay__max_staleness=5))
    assert outcome.staleness_max <= 5.0


def test_loading_weights_takes_its_time_from_searching():
    plain, loading = (
        simulate(
            scenario(costs={"train_s": 0.001, "load_s": seconds}, sync__period=1, trainer__max_steps=200, **STARVED)
        )
        for seconds in (0.0, 0.4)
    )
    # A batch takes 1.6 s to make, and one load of 0.4 s.
    assert plain.trajectories_per_s / loading.trajectories_per_s == pytest.approx(2.0 / 1.6, rel=0.05)


def test_publishing_is_the_trainers_time():
    outcome = simulate(scenario(num_searchers=8, costs={"publish_s": 0.8}, sync__period=1, trainer__max_steps=200))
    assert outcome.sync_share == pytest.approx(0.5, abs=0.02)


def test_barrier_makes_the_trainer_wait_for_the_slowest_searcher():
    costs = {"generate_spread": 0.5, "generate_s": 0.3}
    free, few, many = (
        simulate(scenario(num_searchers=n, costs=costs | {"barrier": barrier}, sync__period=4, trainer__max_steps=120))
        for n, barrier in ((2, False), (2, True), (12, True))
    )
    assert free.steps_per_s > few.steps_per_s > many.steps_per_s


def test_slow_reward_limits_a_searcher():
    outcome = simulate(scenario(costs={"train_s": 0.001, "score_s": 0.4}, trainer__max_steps=100, **STARVED))
    assert outcome.trajectories_per_s == pytest.approx(1 / 0.4, rel=0.05)
    assert outcome.searcher_idle > 0.5


def test_evaluation_holds_one_searcher():
    plain, evaluating = (
        simulate(
            scenario(
                costs={"train_s": 0.001, "evaluate_s": 16.0},
                evaluation__num_prompts=number,
                evaluation__period=10,
                sync__period=10,
                trainer__max_steps=100,
                **STARVED,
            )
        )
        for number in (0, 64)
    )
    # As long as ten batches, every ten batches.
    assert plain.trajectories_per_s / evaluating.trajectories_per_s == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(("num_prompts", "expected_s"), [(0, 0.0), (64, 16.0 + 2.0)])
def test_run_ends_when_the_last_weights_are_loaded_and_evaluated(num_prompts, expected_s):
    ended = Simulation(scenario(costs={"evaluate_s": 16.0, "load_s": 2.0}, evaluation__num_prompts=num_prompts))
    outcome = ended.run()
    assert outcome.run_s - ended.world.env.now == pytest.approx(expected_s)


def test_processes_on_too_few_cores_share_them():
    def at(cores, *, num_searchers):
        return simulate(
            scenario(num_searchers=num_searchers, about={"cores": cores}, trainer__max_steps=200)
        ).trajectories_per_s

    # Three processes, all busy: each runs at two thirds on two cores, and at full speed on three.
    assert at(2, num_searchers=2) == pytest.approx(2 / 3 * at(0, num_searchers=2), rel=0.05)
    assert at(3, num_searchers=2) == pytest.approx(at(0, num_searchers=2), rel=0.05)


def test_searchers_of_ray_take_no_core_from_the_trainer():
    def at(num_searchers, **settings):
        outcome = simulate(
            scenario(num_searchers=num_searchers, about={"cores": 2}, trainer__max_steps=200, **settings)
        )
        return outcome.trained_per_s, outcome.trajectories_per_s

    # Both cores are the one rank's: twice as fast as measured on one, however many search elsewhere.
    assert at(4, searchers__launcher="ray")[0] == pytest.approx(2 / 0.05, rel=0.02)
    assert at(4)[0] < 0.75 / 0.05
    # Each as fast as it was measured.
    starved = {"searchers__launcher": "ray", **STARVED}
    assert at(4, **starved)[1] == pytest.approx(4 / 0.1, rel=0.02)


def test_idle_process_leaves_its_core_to_the_others():
    # The trainer waits nearly always: two searchers have two cores.
    outcome = simulate(
        scenario(num_searchers=2, costs={"train_s": 1e-4}, about={"cores": 2}, trainer__max_steps=200, **STARVED)
    )
    assert outcome.trajectories_per_s == pytest.approx(2 / 0.1, rel=0.1)


def test_run_that_is_not_simulated_to_its_end_goes_on_at_its_pace():
    whole = simulate(scenario(num_searchers=8, trainer__max_steps=400))
    part = simulate(scenario(num_searchers=8, trainer__max_steps=400, about={"max_steps": 50}))
    assert part.num_steps == 50
    assert part.run_s == pytest.approx(whole.run_s, rel=0.02)


def test_prompts_that_cannot_be_drawn_leave_more_work_to_the_others():
    some = simulate(scenario(num_searchers=2, about={"trainable_share": 0.5}, trainer__max_steps=200))
    every = simulate(scenario(num_searchers=2, trainer__max_steps=200))
    assert some.new_per_s == pytest.approx(0.5 * every.new_per_s, rel=0.15)
    assert some.trajectories_per_s == pytest.approx(every.trajectories_per_s, rel=0.05)


def test_ring_that_is_smaller_than_a_turn_holds_nobody_for_ever():
    # Four groups finish at the same moment, and the ring takes one.
    small = {"mode": "sync", "sync__period": 1, "searchers__ring_capacity_bytes": 4096}
    assert simulate(scenario(about=LONG, **small)).num_steps == 50


def test_set_up_that_stands_still_is_an_error():
    # No searcher may begin: the rule that forbids this is not asked here.
    standing = scenario(replay__min_samples_per_insert=2.0, replay__max_samples_per_insert=0.0001)
    simulation = Simulation(standing)
    simulation.searchers.clear()
    with pytest.raises(ConfigError, match="stands still after 0 steps"):
        simulation.run()


@pytest.mark.parametrize(("cores", "num_ranks", "num_searchers"), [(8, 1, 6), (5, 2, 1), (3, 1, 1), (16, 2, 3)])
def test_processes_are_given_all_cores_and_not_one_more(cores, num_ranks, num_searchers):
    trainer, searcher = threads_of(cores=cores, num_ranks=num_ranks, num_searchers=num_searchers, takes_turns=False)
    assert num_ranks * trainer + num_searchers * searcher == pytest.approx(cores)
    assert 1 <= trainer <= searcher

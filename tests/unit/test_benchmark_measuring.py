"""The arithmetic of the speed benchmarks, and their workers."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import short_run
from benchmarks.channel_ends import read_all, write_all
from benchmarks.ipc import sample_group
from benchmarks.measuring import Speeds, Worker, ratios, shown_over, spread, target
from benchmarks.sync_pause import pause_share
from benchmarks.training_work import COMPLETION_TOKENS, KINDS, make_batch, num_completion_tokens
from tbactl.ipc.codec import encode

ECHO = """
import sys
from benchmarks.measuring import serve
print("noise that libraries make on standard output")
serve(lambda asked: {"twice": 2 * asked["number"]}, descriptor=int(sys.argv[1]))
"""


def test_spread_is_the_median_with_the_ends():
    assert spread([3.0, 1.0, 10.0]) == {"median": 3.0, "low": 1.0, "high": 10.0}


def test_ratios_are_taken_within_a_repetition_so_that_a_slow_machine_cancels_out():
    # Both twice as slow in the second repetition: a ratio of medians over three would be off.
    assert ratios([100.0, 50.0, 90.0], [50.0, 25.0, 45.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_speeds_are_compared_by_both_clocks():
    speeds = Speeds(["ours", "theirs"])
    speeds.note("ours", {"tokens": 100, "seconds": 10.0, "cpu_seconds": 1.0})
    speeds.note("theirs", {"tokens": 50, "seconds": 2.5, "cpu_seconds": 1.0})
    compared = speeds.compared("ours")
    assert compared["tokens_per_s"]["theirs"]["median"] == 20.0
    assert shown_over(compared, "theirs") == ("0.50 (0.50 to 0.50)", "2.00 (2.00 to 2.00)")
    assert shown_over(compared, "ours") == ("", "")


def test_ratios_of_different_numbers_of_repetitions_are_refused():
    with pytest.raises(ValueError):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "bound", "is_met"),
    [(0.9, {"at_least": 0.9}, True), (0.89, {"at_least": 0.9}, False), (2.1, {"at_most": 2.0}, False)],
)
def test_target_is_met_on_its_side_of_the_bound(value, bound, is_met):
    assert target("x", value, **bound)["is_met"] is is_met


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_target_without_one_bound_is_refused(bounds):
    with pytest.raises(AssertionError):
        target("x", 1.0, **bounds)


def test_pause_share_counts_whole_periods_and_leaves_the_first_out():
    def step(step_s, publish_s):
        return {"step_s": step_s, "publish_s": publish_s}

    steps = [step(9.0, 0.0), step(9.0, 5.0), step(1.0, 0.0), step(1.0, 0.1), step(1.0, 0.0)]
    assert pause_share(steps, period=2) == pytest.approx(0.1 / 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_for_all_contestants_and_as_long_as_they_say(kind):
    groups = make_batch(kind, num_groups=4, seed=3, first_uid=100)
    again = make_batch(kind, num_groups=4, seed=3, first_uid=100)
    assert groups == again
    uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
    assert uids == list(range(100, 164))
    assert num_completion_tokens(groups) / len(uids) == pytest.approx(COMPLETION_TOKENS, rel=0.1)


def test_channel_loses_nothing_and_notices_when_it_does():
    sent: list[bytes] = []
    write_all(lambda payload: sent.append(payload) is None, count=5, size=64)
    received = iter(sent)
    read_all(lambda: next(received), count=5, size=64)
    missing = iter(sent[1:])
    with pytest.raises(AssertionError):
        read_all(lambda: next(missing), count=4, size=64)


def test_sample_group_is_of_the_size_that_the_table_says():
    assert 3500 < len(encode(sample_group())) < 4600


def test_worker_answers_what_it_is_asked_and_its_own_output_does_not_disturb(tmp_path, monkeypatch):
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    with Worker("echo_worker", [], threads=1) as worker:
        assert [worker.ask(number=number)["twice"] for number in (1, 21)] == [2, 42]


def test_worker_that_fails_ends_the_benchmark_with_its_words(tmp_path, monkeypatch):
    (tmp_path / "failing_worker.py").write_text("raise ValueError('out of luck')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    with Worker("failing_worker", [], threads=1) as worker, pytest.raises(SystemExit, match="out of luck"):
        worker.ask(number=1)


def test_short_run_that_is_there_is_not_run_again(tmp_path):
    (tmp_path / "short-run-0.json").write_text(json.dumps({"steps": []}))
    assert short_run.short_run(tmp_path) == {"steps": []}

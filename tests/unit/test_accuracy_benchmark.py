"""The arithmetic of benchmarks/time_to_accuracy.py: when a level is reached, medians, and what a run has needed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import accuracy_runs, time_to_accuracy
from benchmarks.accuracy_curves import (
    Outcome,
    Point,
    Reached,
    first_crossing,
    median_and_range,
    median_curve,
    ratios,
    reached,
)
from benchmarks.accuracy_report import document, draw, tables
from benchmarks.accuracy_runs import MOMENTS, finished_steps, moments


def curve(*accuracies, seconds=10.0, tokens=1000):
    return [
        Point(step=i, time_s=i * seconds, generated_tokens=i * tokens, accuracy=accuracy)
        for i, accuracy in enumerate(accuracies)
    ]


def outcome(contestant, seed=0, *, points=(), **values):
    return Outcome(contestant=contestant, seed=seed, budget_s=30.0, num_prompts=8, points=points, **values)


@pytest.mark.parametrize(
    ("level", "seconds"),
    [(0.2, 0.0), (0.1, 0.0), (0.3, 5.0), (0.4, 10.0), (0.5, 25.0), (0.6, 30.0), (0.7, None)],
)
def test_first_crossing_of_levels_lies_on_the_line_between_two_points(level, seconds):
    # It falls in between: what counts is the first time.
    points = curve(0.2, 0.4, 0.4, 0.6, 0.5)
    assert first_crossing(points, level=level, axis="time_s") == (None if seconds is None else pytest.approx(seconds))


def test_first_crossing_over_tokens_uses_tokens():
    assert first_crossing(curve(0.0, 1.0), level=0.25, axis="generated_tokens") == pytest.approx(250)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_first_crossing_of_a_higher_level_is_never_earlier(accuracies, one, other):
    low, high = sorted((one, other))
    first, second = (first_crossing(curve(*accuracies), level=level, axis="time_s") for level in (low, high))
    assert (first is None) <= (second is None)
    if first is not None and second is not None:
        assert first <= second + 1e-9


def test_reached_compares_each_seed_with_the_level_of_trl_in_that_seed():
    outcomes = [
        outcome("trl", 0, points=curve(0.2, 0.3, 0.4)),
        outcome("async", 0, points=curve(0.2, 0.6)),
        outcome("trl", 1, points=curve(0.2, 0.9, 0.8)),  # reaches its last level on the way
        outcome("async", 1, points=curve(0.2, 0.7)),
        outcome("async", 2, points=curve(0.2, 0.7)),  # no run of TRL to compare with
        outcome("trl", 3, points=[], problem="exit code 1"),
    ]
    trl, own = reached(outcomes, axis="time_s").values()
    assert trl.levels == own.levels == [0.4, 0.8]
    assert trl.needed == pytest.approx([20.0, 10 * 6 / 7])
    assert own.needed == [pytest.approx(5.0), None]
    assert ratios(trl, own) == [pytest.approx(4.0), 0.0]
    half = reached(outcomes, axis="time_s", share=0.5)["async"]
    assert half.levels == pytest.approx([0.3, 0.5])
    assert half.needed == pytest.approx([2.5, 6.0])


def test_ratios_take_the_seeds_that_both_have_and_one_has_reached():
    above = Reached(contestant="sync", seeds=[0, 1, 2, 4], levels=[], needed=[6.0, None, None, 1.0])
    below = Reached(contestant="async", seeds=[2, 1, 0, 3], levels=[], needed=[None, 2.0, 4.0, 1.0])
    assert ratios(above, below) == [inf, 1.5]
    assert ratios(below, above) == [pytest.approx(4 / 6), 0.0]


def test_median_and_range_takes_what_is_missing_for_the_largest():
    assert median_and_range([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_and_range([3.0, None, 2.0]) == (3.0, 2.0, inf)
    assert median_and_range([None, None, 2.0]) == (inf, 2.0, inf)
    assert median_and_range([1.0, 2.0]) == (1.5, 1.0, 2.0)


def test_median_curve_of_curves_of_different_length_ends_with_the_shortest():
    curves = [curve(0.0, 1.0), curve(0.0, 0.5, 1.0), curve(0.0, 0.0, seconds=5.0)]
    assert median_curve(curves, axis="time_s") == [(0.0, 0.0), (5.0, pytest.approx(0.25))]


def test_moments_are_the_first_saved_step_after_each_share_and_the_last():
    steps = [(number, 4.0 * number, 100 * number) for number in range(1, 31)]
    weights = {number: Path(str(number)) for number in range(2, 31, 2)}
    chosen = moments(steps, weights, budget_s=100.0)
    assert [step for step, _, _ in chosen] == [2, 4, 6, 8, 12, 18, 26, 30]
    for share, (_, time_s, _) in zip(MOMENTS, chosen, strict=True):
        assert 100.0 * share <= time_s


def test_moments_of_a_run_shorter_than_the_budget_include_its_last_weights():
    steps = [(1, 50.0, 10), (2, 90.0, 20)]
    assert moments(steps, {1: Path("1"), 2: Path("2")}, budget_s=100.0) == steps


def test_moments_without_weights_are_a_problem():
    with pytest.raises(RuntimeError, match="no weights"):
        moments([(1, 5.0, 10)], {}, budget_s=100.0)


def test_finished_steps_add_up_the_tokens_that_arrived():
    def line(step, arrived, mean):
        metrics = {"intake/trajectories/total": arrived}
        return {
            "step": step,
            "time_s": 2.0 * step,
            "metrics": metrics | ({} if mean is None else {"intake/completion_tokens/mean": mean}),
        }

    # Nothing arrives in the second step.
    lines = [line(1, 128.0, 10.0), line(2, 128.0, None), line(3, 200.0, 20.5)]
    assert finished_steps(lines) == [(1, 2.0, 1280), (2, 4.0, 1280), (3, 6.0, 2756)]


OUTCOMES = [
    outcome("trl", points=curve(0.2, 0.3, 0.4, seconds=20.0), num_steps=7, start_up_s=12.0),
    outcome("async", points=curve(0.2, 0.6), num_steps=30, start_up_s=11.0),
    outcome("sync", points=curve(0.2, 0.32), num_steps=20, start_up_s=11.0),
]


def test_tables_name_medians_ratios_and_what_was_not_reached():
    text = tables(OUTCOMES)
    assert "| `tbactl run gsm8k` | 0.600 | 30 | 1,000 | 11 |" in text
    assert "| seconds of training to | 50% of TRL's gain: 0.300 | 75% of TRL's gain: 0.350 |" in text
    assert "| TRL `GRPOTrainer` | 20.0 | 30.0 | 36.0 | 38.8 | 40.0 |" in text
    assert "| `tbactl run gsm8k` | 2.5 | 3.8 | 4.5 | 4.9 | 5.0 |" in text
    assert "| TRL `GRPOTrainer` / `tbactl run gsm8k` | 8.00 | 8.00 | 8.00 | 8.00 | 8.00 |" in text
    assert "time / `tbactl run gsm8k`'s, to TRL's last accuracy: 8.00, target >= 4: met" in text
    assert "| `tbactl run gsm8k-sync` | 8.3 | not reached | not reached | not reached | not reached |" in text
    assert "| `tbactl run gsm8k-sync` / `tbactl run gsm8k` | 3.33 | inf | inf | inf | inf |" in text
    assert "exit code 9" in tables([*OUTCOMES, outcome("trl", 1, problem="exit code 9")])


def test_outcome_survives_json_and_the_figure_is_drawn(tmp_path):
    again = [Outcome.from_json(json.loads(json.dumps(asdict(each)))) for each in OUTCOMES]
    assert again == OUTCOMES
    draw(again, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    found = document(again)
    assert len(found["needs"]) == 2 * 5 * 3
    assert [r["by_seed"] for r in found["ratios"]][8:10] == [[pytest.approx(8.0)], [inf]]
    assert [t["is_met"] for t in found["targets"]] == [True, True]


def test_heads_of_levels_are_of_all_seeds_of_trl_whoever_comes_first():
    outcomes = [
        outcome("async", 0, points=curve(0.2, 0.6)),
        outcome("trl", 0, points=curve(0.2, 0.4)),
        outcome("async", 1, problem="exit code 1"),
        outcome("trl", 1, points=curve(0.2, 0.8)),
    ]
    assert "100% of TRL's gain: 0.600 (0.400 to 0.800)" in tables(outcomes)


def test_contestants_that_fail_in_all_seeds_do_not_hold_up_the_report(tmp_path):
    failed = [outcome(name, seed, problem="exit code 9") for seed in (0, 1) for name in ("trl", "async")]
    for outcomes in ([*failed, outcome("sync", points=curve(0.2, 0.6))], failed):
        draw(outcomes, tmp_path / "figure.svg")
        assert "<svg" in (tmp_path / "figure.svg").read_text()
        assert "trl, seed 1, did not finish: exit code 9" in tables(outcomes)
        assert document(outcomes)["targets"] == []


def test_setting_of_trl_without_a_value_is_a_usage_error(tmp_path, monkeypatch, capsys):
    for wrong in ("learning_rate", "=3"):
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--trl", wrong])
        with pytest.raises(SystemExit) as ended:
            time_to_accuracy.main()
        assert ended.value.code == 2
        assert f"argument --trl: '{wrong}' is not KEY=VALUE" in capsys.readouterr().err


def finish(blank, *, directory):
    return Outcome(**blank.terms, contestant=blank.contestant, seed=blank.seed, points=curve(0.2, 0.5))


def test_runs_say_where_they_were_measured_and_those_of_other_versions_are_refused(tmp_path, monkeypatch):
    def on(load, commit):
        return {"processor": "P", "cores": 2, "load_average": load, "versions": {"trl": "1"}, "commit": commit}

    monkeypatch.setattr(time_to_accuracy, "run", finish)
    wanted = [outcome("trl"), outcome("async")]
    monkeypatch.setattr(time_to_accuracy, "machine", lambda *_: on(0.5, "abc"))
    list(time_to_accuracy.measure(wanted[:1], results=tmp_path))
    monkeypatch.setattr(time_to_accuracy, "machine", lambda *_: on(1.5, "abc"))
    outcomes = list(time_to_accuracy.measure(wanted, results=tmp_path))
    assert "trl, seed 0, was measured on: P, 2 cores, load 0.5; trl 1, commit abc" in tables(outcomes)
    assert "async, seed 0, was measured on: P, 2 cores, load 1.5; trl 1, commit abc" in tables(outcomes)
    assert [each["machine"] for each in document(outcomes)["outcomes"]] == [on(0.5, "abc"), on(1.5, "abc")]
    monkeypatch.setattr(time_to_accuracy, "machine", lambda *_: on(1.5, "def"))
    with pytest.raises(SystemExit, match=r"trl-seed0.json holds a run of commit abc \(now def\): choose another"):
        list(time_to_accuracy.measure(wanted, results=tmp_path))


def test_a_stopped_benchmark_runs_only_what_is_missing(tmp_path, monkeypatch, capsys):
    runs = []

    def run(blank, *, directory):
        runs.append(directory.name)
        return Outcome(**blank.terms, contestant=blank.contestant, seed=blank.seed, points=curve(0.2, 0.5))

    monkeypatch.setattr(time_to_accuracy, "run", run)
    arguments = ["", str(tmp_path), "--seeds", "0", "--budget-minutes", "1"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--contestants", "trl"])
    time_to_accuracy.main()
    monkeypatch.setattr(sys, "argv", arguments)
    time_to_accuracy.main()
    assert runs == ["trl-seed0", "async-seed0", "sync-seed0"]
    assert (tmp_path / "time_to_accuracy.svg").exists() and (tmp_path / "time_to_accuracy.json").exists()
    monkeypatch.setattr(sys, "argv", [*arguments, "--trl", "learning_rate=1e-3"])
    with pytest.raises(SystemExit, match="choose another directory"):
        time_to_accuracy.main()


def test_a_run_is_evaluated_at_its_moments_and_leaves_no_weights(tmp_path, monkeypatch):
    def train(blank, *, directory):
        weights = {step: directory / "weights" / f"step_{step:06d}" for step in (2, 4)}
        for path in weights.values():
            path.mkdir(parents=True)
        return 7.0, [(step, 6.0 * step, 100 * step) for step in range(1, 6)], weights

    def evaluate(weights, *, blank, output):
        assert all(path.is_dir() for path in weights)
        return {"start": 0.2} | {str(path): 0.1 * int(path.name[-1]) for path in weights}

    monkeypatch.setattr(accuracy_runs, "train_trl", train)
    monkeypatch.setattr(accuracy_runs, "evaluate", evaluate)
    found = accuracy_runs.run(outcome("trl"), directory=tmp_path / "trl")
    assert found.start_up_s == 7.0 and found.num_steps == 5 and not found.problem
    assert [(p.step, p.time_s, p.generated_tokens) for p in found.points] == [
        (0, 0.0, 0),
        (2, 12.0, 200),
        (4, 24.0, 400),
    ]
    assert [p.accuracy for p in found.points] == pytest.approx([0.2, 0.2, 0.4])
    assert not (tmp_path / "trl" / "weights").exists()


def test_a_run_that_fails_is_an_outcome_with_its_reason(tmp_path, monkeypatch):
    def fail(blank, *, directory):
        raise RuntimeError("exit code 5")

    monkeypatch.setattr(accuracy_runs, "train_trl", fail)
    found = accuracy_runs.run(outcome("trl"), directory=tmp_path / "trl")
    assert found == outcome("trl", problem="exit code 5")

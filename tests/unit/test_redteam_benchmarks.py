"""The red-team benchmarks count, tabulate and draw what is there; the runs themselves are replaced."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import redteam_baseline, redteam_runs, redteam_scaling
from benchmarks.driver import FinishedRun, run_recipe
from benchmarks.redteam_discovery import distinct_successes, number_by, successes, unlike_successes
from benchmarks.redteam_recording import (
    DIRECTORY_VARIABLE,
    KIND,
    RecordedAttack,
    RecordedRedteam,
    count_recorded,
    read_recorded,
    recording_environment,
)
from benchmarks.redteam_report import last_and_start, metric_cell, over_seeds
from benchmarks.redteam_runs import Budget, Cell, Outcome, measure
from tbactl.config.loading import load_recipe
from tbactl.evaluation.hooks import FrontierPoint
from tbactl.types import EvaluationResult
from tbactl_redteam.task import RedteamTask
from tests.support.redteam_stand_ins import completion

ATTACKS = st.lists(
    st.tuples(st.sampled_from(["a b", "A  b", "c", "d e", "f"]), st.sampled_from([None, 0.0, 0.1, 0.3, 0.9])),
    max_size=12,
)
# Directions of the texts: "c" and "d e" mean nearly the same, the others nothing alike.
DIRECTIONS = {"a b": (1, 0, 0), "A  b": (1, 0, 0), "c": (0, 1, 0), "d e": (0, 0.8, 0.6), "f": (0, 0, 1)}


def encode(texts):
    return np.array([DIRECTIONS[text] for text in texts], dtype=np.float32)


def recorded(rows):
    return [RecordedAttack(time_s=float(i), attack=a, reward=-1.0, toxicity=t) for i, (a, t) in enumerate(rows)]


def outcome(group, **values):
    defaults = {"seed": 0, "overrides": (), "profile": "cpu", "run": f"runs/{group}", "steps": 3, "attacks": 4}
    return Outcome(group=group, **defaults | {"training_s": 2.0, "num_processes": 2, "searcher_cores": 1} | values)


THREE_STEPS = Budget("steps", 3)
EVALUATION = {"success_rate": (0.25, 0.1, 0.5), "toxicity_mean": (0.2, 0.1, 0.3), "diversity": (0.7, 0.6, 0.8)}


# ---- counting ----


@given(ATTACKS, st.sampled_from([0.0, 0.1, 0.5]))
def test_curve_counts_what_a_recount_of_each_beginning_counts(rows, threshold):
    attacks = recorded(rows)
    numbers = distinct_successes(attacks, threshold=threshold)
    for end in range(len(rows) + 1):
        texts = {" ".join(a.casefold().split()) for a, t in rows[:end] if t is not None and t > threshold}
        assert number_by(numbers, end) == len(texts)


@given(ATTACKS)
def test_unlike_successes_have_no_two_alike_and_leave_out_only_what_is_like_one_of_them(rows):
    attacks = recorded(rows)
    kept = unlike_successes(attacks, threshold=0.1, encode=encode)
    vectors = encode([attacks[number - 1].attack for number in kept]) if kept else np.zeros((0, 3))
    cosines = vectors @ vectors.T - np.eye(len(kept))
    assert (cosines < 0.5).all()
    for number in successes(attacks, threshold=0.1):
        assert (vectors @ encode([attacks[number - 1].attack])[0]).max() >= 0.5


def test_toxicity_at_the_threshold_and_attacks_without_toxicity_are_no_success():
    assert successes(recorded([("c", 0.5), ("c", None), ("c", 0.51)]), threshold=0.5) == [3]


# ---- recording ----


def test_task_scores_as_its_parent_and_writes_down_what_it_scored(tmp_path, monkeypatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    options = {"victim": {"kind": "echo"}}
    completions = [completion(" Name three rude words\n5. x"), completion("one"), completion(" Describe a \ud800 cat")]
    expected = RedteamTask(options).score(None, completions)
    task = RecordedRedteam(options)
    assert task.score(None, completions) == task.score(None, completions) == expected
    attacks = read_recorded(tmp_path)
    assert [attack.attack for attack in attacks] == 2 * ["Name three rude words", "one", "Describe a ? cat"]
    assert [attack.reward for attack in attacks] == 2 * [reward.value for reward in expected]
    assert [attack.toxicity is None for attack in attacks] == 2 * [False, True, False]


def test_records_of_all_processes_are_read_in_the_order_of_time_without_a_line_being_written(tmp_path):
    lines = [json.dumps({"time_s": t, "attack": f"{t}", "reward": 0.0, "toxicity": None}) + "\n" for t in range(4)]
    (tmp_path / "1.jsonl").write_text(lines[0] + lines[3])
    (tmp_path / "2.jsonl").write_text(lines[1] + lines[2] + lines[3][:20])
    assert [attack.attack for attack in read_recorded(tmp_path)] == ["0", "1", "2", "3"]
    assert count_recorded(tmp_path) == 4


def test_processes_of_a_run_know_the_recording_task(tmp_path):
    environment = recording_environment(tmp_path, plugin=tmp_path / "plugin")
    script = f"from tbactl import registry; print(registry.load('tbactl.tasks', '{KIND}').__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TBACTL_LOAD_PLUGINS": "0", **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "RecordedRedteam", done.stderr


# ---- runs ----


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_greedy_baseline_differs_from_tba_in_objective_and_replay_alone(profile):
    tba, greedy = (
        load_recipe("redteam", profile=profile, overrides=list(overrides)).run_config
        for overrides in redteam_baseline.METHODS.values()
    )
    differing = {name for name in type(tba).model_fields if getattr(tba, name) != getattr(greedy, name)}
    assert differing == {"objective", "replay"}
    assert (greedy.objective.kind, greedy.objective.beta, greedy.objective.beta_final) == ("reinforce", 1e-6, None)
    replay = greedy.replay
    assert (replay.on_policy_fraction, replay.near_duplicates) == (1.0, "keep")
    assert (replay.capacity, replay.initial_trajectories) == (tba.replay.capacity, tba.replay.initial_trajectories)


@pytest.mark.parametrize(
    ("budget", "num_steps", "spent"),
    [
        (Budget("steps", 5), 5, False),
        (Budget("seconds", 60), redteam_runs.NO_LAST_STEP, True),
        (Budget("attacks", 100), redteam_runs.NO_LAST_STEP, True),
    ],
)
def test_budget_of_steps_is_a_setting_and_the_others_stop_the_run(budget, num_steps, spent):
    config = load_recipe("redteam", profile="cpu", overrides=list(budget.overrides())).run_config
    assert config.trainer.max_steps == num_steps
    assert not budget.is_spent(num_attacks=99, training_s=59.9)
    assert budget.is_spent(num_attacks=100, training_s=60.0) == spent


@pytest.fixture
def started(monkeypatch):
    """Names of the runs that were started; each one leaves what a run leaves."""
    calls = []

    def run_recipe(recipe, *, profile, overrides, environment, is_enough):
        settings = dict(text.split("=", 1) for text in overrides)
        calls.append(settings["name"])
        if settings["name"] == "bad-seed0":
            return FinishedRun(seconds=1.0, problem="exit code 5: it broke")
        return FinishedRun(seconds=1.0, directory=make_run(Path(settings["runs_dir"]) / "run-1"))

    monkeypatch.setattr(redteam_runs, "run_recipe", run_recipe)
    return calls


def make_run(root):
    config = load_recipe("redteam", profile="cpu", overrides=["searchers.num_searchers=2"]).run_config
    (root / "config").mkdir(parents=True)
    process = {"role": "searcher", "index": 0, "run": config.model_dump(mode="json"), "cores": [3]}
    process |= {"run_directory": str(root), "shm_directory": "/dev/shm/x", "policy_directory": "x"}
    (root / "config" / "searcher-0.json").write_text(json.dumps(process))
    record = {"name": "x", "recipe": "redteam", "profile": "cpu", "attempt": 1, "pid": 1, "pid_start_ticks": 1}
    record |= {"shm_directory": "/dev/shm/x", "started_at": "now", "outcome": "finished", "training_s": 8.0, "steps": 3}
    (root / "run.json").write_text(json.dumps(record))
    line = {"time_s": 1.0, "attack": "a", "reward": -1.0, "toxicity": 0.3}
    (root.parent / "attacks" / "7.jsonl").write_text(2 * (json.dumps(line) + "\n"))
    return root


def measured(results, *groups, budget=THREE_STEPS, overrides=()):
    cells = [Cell(group=group, seed=0) for group in groups]
    return list(measure(cells, results=results, budget=budget, profile="cpu", overrides=overrides))


def test_finished_runs_are_kept_and_failed_ones_tried_again(tmp_path, started):
    first = measured(tmp_path, "good", "bad")
    assert first == measured(tmp_path, "good", "bad")
    assert started == ["good-seed0", "bad-seed0", "bad-seed0"]
    good, bad = first
    assert (good.run, good.steps, good.training_s, good.attacks) == ("runs/good-seed0/run-1", 3, 8.0, 2)
    assert (good.num_processes, good.searcher_cores) == (3, 1)
    assert bad.problem == "exit code 5: it broke"


@pytest.mark.parametrize("change", [{"budget": Budget("steps", 4)}, {"overrides": ["trainer.learning_rate=1e-3"]}])
def test_results_of_other_settings_are_not_taken_for_these(tmp_path, started, change):
    measured(tmp_path, "good")
    with pytest.raises(SystemExit, match=r"good-seed0\.json holds a run with other settings .*choose another"):
        measured(tmp_path, "good", **change)


def test_run_that_is_refused_says_why(tmp_path):
    finished = run_recipe("redteam", profile="cpu", overrides=["trainer.max_steps=0", f"runs_dir={tmp_path}"])
    assert finished.directory is None
    assert finished.problem.startswith("exit code 3: ")
    assert "trainer.max_steps" in finished.problem


# ---- tables and figures ----


def test_last_evaluation_of_each_run_and_the_first_start_are_compared():
    def point(run, step, rate):
        metrics = {"success_rate": rate, "clusters": 2.0} | ({"judge": 0.5} if run == "r2" else {})
        intervals = {"success_rate": (rate - 0.1, rate + 0.1)}
        result = EvaluationResult(task="t", policy_version=0, num_prompts=4, metrics=metrics, intervals=intervals)
        return FrontierPoint(run=run, step=step, result=result)

    points = [point("r1", 0, 0.2), point("r1", 10, 0.3), point("r1", 20, 0.4), point("r2", 0, 0.9), point("r2", 5, 0.5)]
    last, start = last_and_start(points, names={"r1": "a", "r2": "b"})
    assert last["a"] == {"success_rate": pytest.approx((0.4, 0.3, 0.5)), "clusters": (2.0, 2.0, 2.0)}
    assert last["b"]["judge"] == (0.5, 0.5, 0.5)
    assert start["success_rate"][0] == 0.2


def test_one_seed_shows_the_interval_and_several_their_range():
    assert metric_cell([EVALUATION], "diversity") == "0.700 [0.600, 0.800]"
    assert metric_cell([EVALUATION, {"diversity": (0.5, 0.4, 0.6)}], "diversity") == "0.600 (0.500 to 0.700)"
    assert metric_cell([EVALUATION], "clusters") == over_seeds([]) == "-"


def write_attacks(results, name, rows):
    directory = results / "runs" / name / "attacks"
    directory.mkdir(parents=True)
    lines = [json.dumps({"time_s": i, "attack": a, "reward": -1, "toxicity": t}) for i, (a, t) in enumerate(rows)]
    (directory / "1.jsonl").write_text("\n".join(lines) + "\n")


def rows_of_csv(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs a driver's `main` on outcomes and attacks that are there."""

    def run(module, outcomes, *arguments):
        evaluations = {item.name: EVALUATION for item in outcomes if not item.problem}
        monkeypatch.setattr(module, "measure", lambda cells, **_: iter(outcomes))
        monkeypatch.setattr(module, "evaluate", lambda outcomes, **_: (evaluations, EVALUATION))
        monkeypatch.setattr(sys, "argv", ["program", str(tmp_path), *arguments])
        module.main()

    return run


def test_baseline_counts_as_many_attacks_of_each_method(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr(redteam_baseline, "sentence_encoder", lambda source: encode)
    write_attacks(tmp_path, "TBA-seed0", [("a b", 0.6), ("c", 0.7), ("d e", 0.15), ("f", 0.9)])
    write_attacks(tmp_path, "greedy-seed0", [("c", 0.9), ("c", 0.9), ("c", None)])
    failed = outcome("TBA", seed=1, problem="exit code 6: no memory")
    command(redteam_baseline, [outcome("TBA"), outcome("greedy"), failed])
    text = capsys.readouterr().out
    assert "Successful attacks among the first 3 generated" in text
    assert "| 0.5 | TBA | 2 | 2 | 2 |" in text
    assert "| 0.1 | TBA | 3 | 3 | 2 |" in text
    assert "| 0.5 | greedy | 2 | 1 | 1 |" in text
    assert "did not finish: exit code 6: no memory" in text
    assert (tmp_path / "redteam_baseline.md").read_text() in text
    tba, greedy, missing = rows_of_csv(tmp_path / "redteam_baseline.csv")
    assert (tba["attacks"], tba["compared"], tba["distinct_above_0.1"], tba["diversity_low"]) == ("4", "3", "3", "0.6")
    assert (greedy["successful_above_0.2"], greedy["unlike_above_0.2"]) == ("2", "1")
    assert (missing["problem"], missing["attacks"]) == ("exit code 6: no memory", "")
    assert (tmp_path / "redteam_baseline.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_says_where_processes_shared_cores(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    runs = [outcome("1-searchers"), outcome("4-searchers", num_processes=5, searcher_cores=0, attacks=9)]
    for item in runs:
        write_attacks(tmp_path, item.name, [("a b", 0.6), ("c", 0.15)])
    command(redteam_scaling, runs)
    text = capsys.readouterr().out
    assert "this machine has 2 cores. Runs with 4 searchers had more processes than that" in text
    assert "| 1 | 1 | 2 | 3 | 4 | 2.00 | 1 | 1 | 2 |" in text
    assert "| 4 | not bound | 2 | 3 | 9 | 4.50 | 1 | 1 | 2 |" in text
    first, last = rows_of_csv(tmp_path / "redteam_scaling.csv")
    assert (first["searchers"], first["attacks_per_s"], first["toxicity_mean_high"]) == ("1", "2.0", "0.3")
    assert (last["searcher_cores"], last["distinct_above_0.5"]) == ("0", "1")
    assert (tmp_path / "redteam_scaling.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_says_nothing_of_cores_where_there_are_enough():
    runs = [outcome("1-searchers"), outcome("6-searchers", num_processes=7, profile="gpu", searcher_cores=0)]
    assert redteam_scaling.crowded(runs, num_cores=2) == ""


def test_scaling_sets_the_number_of_searchers():
    cell = redteam_scaling.cell_of(3, seed=1)
    config = load_recipe("redteam", profile="cpu", overrides=list(cell.overrides)).run_config
    assert config.searchers.num_searchers == 3
    assert cell.name == "3-searchers-seed1"

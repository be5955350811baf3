"""`tbactl eval --frontier` up to the children it starts, which are replaced here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tbactl import registry
from tbactl.cli.main import main
from tbactl.config.layout import RunLayout
from tbactl.config.loading import load_recipe
from tbactl.testing.fake_task import FakeTask
from tests.support.recipes import write_recipe

DRAWN = []


class DrawingTask(FakeTask):
    @staticmethod
    def frontier_metrics():
        return ("gain", "cost")

    @staticmethod
    def draw_frontier(points, *, output):
        DRAWN.append([(point.run, point.step, point.result.metrics["gain"]) for point in points])
        return [output / "frontier.png"]


class NeedingTask(DrawingTask):
    @staticmethod
    def frontier_problems(options):
        return ["it needs a reference."] if options["reference_policy"] is None else []


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Checkpoints that were evaluated, in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.BUILT_IN["tbactl.tasks"], "fake", f"{__name__}:DrawingTask")
    DRAWN.clear()
    calls = []

    def run_child(module, arguments, *, log, scratch=None):
        config = json.loads(Path(arguments[1]).read_text())
        calls.append(config["checkpoint"])
        assert config["reference_policy"] == make_config(tmp_path).policy.path
        result = {"task": "fake", "policy_version": 0, "num_prompts": 4, "metrics": {"gain": 0.5, "cost": 1.0}}
        result |= {"harness": "native", "intervals": {"gain": [0.25, 0.75]}}
        output = Path(config["output"])
        output.mkdir(parents=True, exist_ok=True)
        (output / "result.json").write_text(json.dumps(result))
        return json.dumps(result)

    monkeypatch.setattr("tbactl.cli.commands.eval.run_child", run_child)
    return calls


def make_config(tmp_path):
    return load_recipe(write_recipe(tmp_path), profile="cpu").run_config


def make_run(tmp_path, name, *, steps=(10, 20)):
    config = make_config(tmp_path)
    layout = RunLayout(tmp_path / "runs" / name)
    layout.config.mkdir(parents=True)
    layout.resolved_config.write_text(config.model_dump_json())
    for step in steps:
        layout.checkpoint(step).mkdir(parents=True)
        (layout.checkpoint(step) / "manifest.json").write_text("{}")
    layout.checkpoint(30).mkdir(parents=True)  # without a manifest: being written
    return f"runs/{name}", config.policy.path


def test_frontier_evaluates_start_and_checkpoints_and_the_task_draws_them(evaluated, tmp_path, capsys):
    run, start = make_run(tmp_path, "a")
    assert main(["eval", "--frontier", run]) == 0
    assert evaluated == [start, f"{run}/checkpoints/step_000010", f"{run}/checkpoints/step_000020"]
    assert DRAWN == [[("a", 0, 0.5), ("a", 10, 0.5), ("a", 20, 0.5)]]
    out = capsys.readouterr().out
    assert "0.5000 (0.2500 .. 0.7500)" in out
    assert "runs/frontier/frontier.png" in out


def test_frontier_evaluates_nothing_twice(evaluated, tmp_path):
    run, _ = make_run(tmp_path, "a")
    other, _ = make_run(tmp_path, "b", steps=(10,))
    assert main(["eval", "--frontier", run]) == 0
    evaluated.clear()
    assert main(["eval", "--frontier", run, other]) == 0
    # The policy that both started from is one.
    assert evaluated == [f"{other}/checkpoints/step_000010"]
    assert [(run, step) for run, step, _ in DRAWN[-1]] == [("a", 0), ("a", 10), ("a", 20), ("b", 0), ("b", 10)]


def test_frontier_other_settings_or_weights_are_evaluated_anew(evaluated, tmp_path):
    run, _ = make_run(tmp_path, "a", steps=(10,))
    main(["eval", "--frontier", run])
    evaluated.clear()
    (Path(run) / "checkpoints/step_000010/manifest.json").write_text("{ }")
    main(["eval", "--frontier", run])
    assert evaluated == [f"{run}/checkpoints/step_000010"]
    main(["eval", "--frontier", run, "--limit", "3"])
    assert len(evaluated) == 3


def test_frontier_result_that_was_cut_short_is_measured_again(evaluated, tmp_path):
    run, _ = make_run(tmp_path, "a")
    checkpoint = f"{run}/checkpoints/step_000010"
    assert main(["eval", "--frontier", checkpoint]) == 0
    (file,) = Path("runs/frontier/evaluations").glob("a-step_000010-*/result.json")
    file.write_text(file.read_text()[:20])
    assert main(["eval", "--frontier", checkpoint]) == 0
    assert evaluated == [checkpoint, checkpoint]


def test_frontier_json_has_points_and_files(evaluated, tmp_path, capsys):
    run, _ = make_run(tmp_path, "a", steps=(10,))
    assert main(["eval", "--frontier", run, "--output", "there", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == ["there/frontier.png"]
    assert document["points"][1] == {"run": "a", "step": 10, "metrics": {"gain": 0.5, "cost": 1.0}}
    assert Path("there/evaluations").is_dir()


def test_frontier_asks_the_task_for_missing_options_before_anything_is_evaluated(
    evaluated, tmp_path, monkeypatch, capsys
):
    run, _ = make_run(tmp_path, "a", steps=(10,))
    Path("model").mkdir()
    monkeypatch.setitem(registry.BUILT_IN["tbactl.tasks"], "fake", f"{__name__}:NeedingTask")
    assert main(["eval", "--frontier", run]) == 0
    evaluated.clear()
    assert main(["eval", "--frontier", run, "model", "--task", "fake"]) == 3
    assert "--frontier: model: it needs a reference." in capsys.readouterr().err
    assert evaluated == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/a", "runs/b"], "--frontier compares several"),
        (["--frontier", "runs/a", "runs/a"], "named twice"),
        (["--frontier", "runs/a", "--harness", "lm-eval"], "leave --harness away"),
        (["--frontier", "runs/a", "--task", "math"], "the task 'math' draws no frontier"),
    ],
)
def test_frontier_refuses_what_makes_no_sense(evaluated, tmp_path, capsys, arguments, message):
    for name in ("a", "b"):
        make_run(tmp_path, name)
    assert main(["eval", *arguments]) == 3
    assert message in " ".join(capsys.readouterr().err.split())
    assert evaluated == []

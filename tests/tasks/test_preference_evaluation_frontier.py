"""The frontier's table and picture."""

from __future__ import annotations

import csv
import sys

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.evaluation.hooks import CheckpointEvaluation, FrontierDrawing, FrontierPoint
from tbactl.types import EvaluationResult
from tbactl_preference.frontier import PUBLISHED, PUBLISHED_LABEL, write_frontier
from tbactl_preference.task import PreferenceTask


def point(run, step, **metrics):
    values = {"win_rate": 0.4 + step / 100, "kl_k1_per_sequence": step / 10, "reference_perplexity_mean": 1.1} | metrics
    result = EvaluationResult(
        task="preference",
        policy_version=0,
        num_prompts=200,
        metrics={name: value for name, value in values.items() if value is not None},
        intervals={"win_rate": (0.3, 0.6)},
    )
    return FrontierPoint(run=run, step=step, result=result)


POINTS = [point("a", 0), point("a", 10), point("$b_1^{$", 10)]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_table_has_measured_and_published_points_told_apart(tmp_path):
    table, picture = write_frontier(POINTS, output=tmp_path)
    lines = rows(table)
    assert [(line["run"], line["step"], line["num_prompts"]) for line in lines[:3]] == [
        ("a", "0", "200"),
        ("a", "10", "200"),
        ("$b_1^{$", "10", "200"),
    ]
    assert [lines[1][name] for name in ("source", "win_rate", "win_rate_low", "kl_k1_per_sequence")] == [
        "measured",
        "0.5",
        "0.3",
        "1.0",
    ]
    assert all(line["source"] == PUBLISHED_LABEL for line in lines[3:])
    assert all(line["kl_k1_per_sequence"] == "" for line in lines[3:]), "the paper gives no divergence"
    assert (lines[-1]["run"], lines[-1]["reference_perplexity_mean"], lines[-1]["win_rate"]) == (
        "TBA, about 15 steps a sync",
        "1.13",
        "0.86",
    )
    assert len(lines) == 3 + len(PUBLISHED)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "option"),
    [("win_rate", "gold_reward_model"), ("kl_k1_per_sequence", "reference_policy")],
)
def test_point_without_what_is_drawn_says_which_option_gives_it(tmp_path, name, option):
    with pytest.raises(TaskError, match=f"of b, step 5 has no {name}: .*{option}"):
        write_frontier([point("b", 5, **{name: None})], output=tmp_path)


def test_options_without_which_a_point_lacks_what_is_drawn_are_named_beforehand():
    gold, reference = PreferenceTask.frontier_problems({"gold_reward_model": None})
    assert "--set task.options.gold_reward_model=NAME" in gold
    assert "--set task.options.reference_policy=NAME" in reference
    assert not PreferenceTask.frontier_problems({"gold_reward_model": "summary-gold", "reference_policy": "x"})


def test_without_matplotlib_the_table_is_written_and_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        write_frontier(POINTS, output=tmp_path)
    assert len(rows(tmp_path / "frontier.csv")) == 3 + len(PUBLISHED)


def test_the_task_offers_both_hooks():
    assert issubclass(PreferenceTask, FrontierDrawing)
    assert isinstance(PreferenceTask(), CheckpointEvaluation)

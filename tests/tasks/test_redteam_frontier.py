"""The frontier's table and picture."""

from __future__ import annotations

import csv
import sys

import pytest

from tbactl.errors import ConfigError, TaskError
from tbactl.evaluation.hooks import FrontierPoint
from tbactl.types import EvaluationResult
from tbactl_redteam.frontier import PUBLISHED, PUBLISHED_LABEL, write_frontier


def point(run, step, **metrics):
    values = {"success_rate": 0.1, "toxicity_mean": 0.1 + step / 100, "judge_toxicity_mean": 0.2, "diversity": 0.7}
    result = EvaluationResult(
        task="redteam",
        policy_version=0,
        num_prompts=200,
        metrics={name: value for name, value in (values | metrics).items() if value is not None},
        intervals={"diversity": (0.6, 0.8)},
    )
    return FrontierPoint(run=run, step=step, result=result)


POINTS = [point("a", 0), point("a", 10, judge_toxicity_mean=None), point("$b_1^{$", 10, judge_toxicity_mean=None)]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_table_has_measured_and_published_points_told_apart_and_points_without_a_judge_are_drawn(tmp_path):
    table, picture = write_frontier(POINTS, output=tmp_path)
    lines = rows(table)
    assert [(line["source"], line["run"], line["step"]) for line in lines[:3]] == [
        ("measured", "a", "0"),
        ("measured", "a", "10"),
        ("measured", "$b_1^{$", "10"),
    ]
    assert [lines[1][name] for name in ("toxicity_mean", "diversity_low", "judge_toxicity_mean")] == ["0.2", "0.6", ""]
    assert all(line["source"] == PUBLISHED_LABEL for line in lines[3:])
    assert (lines[3]["run"], lines[3]["diversity"], lines[3]["success_rate"], lines[3]["toxicity_mean"]) == (
        "GFlowNet, synchronous, 1 x V100, GPT-2 against GPT-2",
        "0.65",
        "0.966",
        "",
    )
    assert len(lines) == 3 + len(PUBLISHED)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "remedy"), [("diversity", "--limit"), ("toxicity_mean", "victim")])
def test_point_without_what_is_drawn_says_what_to_do(tmp_path, name, remedy):
    with pytest.raises(TaskError, match=f"of b, step 5 has no {name}: .*{remedy}"):
        write_frontier([point("b", 5, **{name: None})], output=tmp_path)


def test_without_matplotlib_the_table_is_written_and_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        write_frontier(POINTS, output=tmp_path)
    assert len(rows(tmp_path / "frontier.csv")) == 3 + len(PUBLISHED)

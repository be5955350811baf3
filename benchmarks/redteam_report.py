"""Evaluations of red-team runs, and the tables made of them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tbactl.evaluation.hooks import FrontierPoint
from tbactl.types import EvaluationResult

Metrics = Mapping[str, tuple[float, float, float]]
"""Of an evaluation: value and 95 % interval by name (no interval: the value twice)."""

# How the names of metrics that are whole numbers end.
COUNTS = ("distinct_successes", "distinct_attacks", "clusters")


def last_and_start(points: Iterable[FrontierPoint], *, names: Mapping[str, str]) -> tuple[dict[str, Metrics], Metrics]:
    """Metrics at the last step of each run, and the first ones there are at step 0.

    Args:
        points: of all runs, each in the order of steps.
        names: under which a run's metrics are returned.
    """
    last: dict[str, Metrics] = {}
    start: Metrics = {}
    for point in points:
        metrics = _metrics(point.result)
        if point.step == 0:
            start = start or metrics
        else:
            last[names[point.run]] = metrics
    return last, start


def over_seeds(values: Iterable[float], *, digits: int = 0) -> str:
    """Mean, and the range where there are several."""
    known = list(values)
    if not known:
        return "-"
    mean = f"{fmean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.{digits}f} to {max(known):.{digits}f})"


def metric_cell(evaluations: Sequence[Metrics], name: str) -> str:
    """A metric with the interval of its evaluation, or, of several seeds, the mean and the range."""
    digits = 0 if name.endswith(COUNTS) else 3
    known = [metrics[name] for metrics in evaluations if name in metrics]
    if len(known) != 1:
        return over_seeds((value for value, _, _ in known), digits=digits)
    value, low, high = (f"{number:.{digits}f}" for number in known[0])
    return value if low == high else f"{value} [{low}, {high}]"


def markdown(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table under a bold title."""
    lines = [f"**{title}**", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def flat(metrics: Metrics) -> dict[str, float]:
    """Metrics as columns of a CSV file."""
    return {
        name + suffix: value
        for name, values in metrics.items()
        for suffix, value in zip(("", "_low", "_high"), values, strict=True)
    }


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line for each row; columns in the order in which they come first."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def _metrics(result: EvaluationResult) -> Metrics:
    return {name: (value, *result.intervals.get(name, (value, value))) for name, value in result.metrics.items()}

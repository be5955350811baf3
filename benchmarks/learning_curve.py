"""Held-out accuracy and completion length over time: `python benchmarks/learning_curve.py FIGURE.svg RUN [RUN...]`.

Reads what runs have written; runs nothing. Time counts from the moment all processes were ready. The band is the 95 %
interval of each evaluation; the thin line is the reward of completions as they arrived.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from tbactl.config.layout import RunLayout
from tbactl.config.sections import RunConfig

COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8e6c8a")


def main() -> None:
    """Draw all runs into one figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tbactl"}
    )
    figure, (accuracy, length) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(3, 2), layout="constrained")
    for run, colour in zip(arguments.runs, COLOURS, strict=False):
        draw(RunLayout(run.resolve()), accuracy=accuracy, length=length, colour=colour)
    accuracy.set(xlabel="seconds of training", ylabel="held-out accuracy, greedy", ylim=(0, 1), xlim=(0, None))
    accuracy.legend(loc="lower right", frameon=False)
    length.set(xlabel="seconds of training", ylabel="tokens of a completion", ylim=(0, None), xlim=(0, None))
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.figure, metadata={"Date": None})


def draw(layout: RunLayout, *, accuracy: Axes, length: Axes, colour: str) -> None:
    """One run's evaluations and fresh completions."""
    config = RunConfig.model_validate_json(layout.resolved_config.read_bytes())
    steps = _lines(layout.metrics)
    seconds_at = {0: 0.0} | {int(line["step"]): float(line["time_s"]) for line in steps}
    points = []
    for line in _lines(layout.evaluations):
        name, value = next(iter(line["metrics"].items()))
        low, high = line["intervals"].get(name, (value, value))
        points.append((seconds_at[line["policy_version"]], value, low, high))
    seconds, values, lows, highs = zip(*sorted(points), strict=True)
    label = f"{config.name} ({config.mode})"
    accuracy.plot(seconds, values, "o-", color=colour, label=label, markersize=4)
    accuracy.fill_between(seconds, lows, highs, color=colour, alpha=0.15, linewidth=0)
    fresh = [(line["time_s"], line["metrics"]) for line in steps if "intake/reward/mean" in line["metrics"]]
    times = [time for time, _ in fresh]
    accuracy.plot(times, [m["intake/reward/mean"] for _, m in fresh], color=colour, alpha=0.4, linewidth=0.8)
    length.plot(times, [m["intake/completion_tokens/mean"] for _, m in fresh], color=colour, linewidth=1.2)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()

"""The picture of a frontier. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tbactl.evaluation.hooks import FrontierPoint
from tbactl_preference.frontier import KL, PERPLEXITY, PUBLISHED, PUBLISHED_LABEL, WIN_RATE

# Told apart by people who see few colours (Okabe and Ito); grey is the paper's.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_PAPER_COLOR = "0.55"
_MARKERS = {"Online DPO": "s", "PPO": "^", "RLOO": "v", "TBA": "*"}
# Where a method's name stands: beside its least synchronous point, out of the way of the others.
_LABEL_OFFSETS = {"Online DPO": (-8, -3), "PPO": (8, -9), "RLOO": (-8, 4), "TBA": (8, 6)}
# More points of a run than this get no step numbers but the first and the last.
_MAX_NUMBERED = 8


def draw(points: Sequence[FrontierPoint], *, file: Path) -> Path:
    """Win rate against KL, and against the paper's "perplexity" with the paper's points; with 95 % intervals."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    runs = [(run, list(items)) for run, items in groupby(points, key=lambda point: point.run)]
    for (run, items), number in zip(runs, range(len(runs)), strict=True):
        color = _COLORS[number % len(_COLORS)]
        for axes, name in ((left, KL), (right, PERPLEXITY)):
            _draw_run(axes, items, name=name, run=run, color=color)
    _draw_published(right)
    left.set_xlabel("KL(policy || reference), nats a completion (k1, temperature 1)")
    right.set_xlabel('the paper\'s "perplexity" under the reference')
    left.set_ylabel("win rate against the human summary")
    left.set_title("measured; numbers are optimizer steps", fontsize=10, loc="left")
    right.set_title(f"grey: {PUBLISHED_LABEL}", fontsize=10, loc="left", color="0.4")
    left.set_ylim(0.0, 1.0)
    for axes in (left, right):
        axes.axhline(0.5, color="0.85", linewidth=1, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.18)
    figure.savefig(file, dpi=130, format="png")
    return file


def _draw_run(axes: Axes, points: Sequence[FrontierPoint], *, name: str, run: str, color: str) -> None:
    results = [point.result for point in points]
    x, y = ([result.metrics[metric] for result in results] for metric in (name, WIN_RATE))
    for result, horizontal, vertical in zip(results, x, y, strict=True):
        low, high = result.intervals.get(WIN_RATE, (vertical, vertical))
        axes.plot([horizontal, horizontal], [low, high], color=color, linewidth=1, alpha=0.35)
        low, high = result.intervals.get(name, (horizontal, horizontal))
        axes.plot([low, high], [vertical, vertical], color=color, linewidth=1, alpha=0.35)
    axes.plot(x, y, color=color, marker="o", markersize=4.5, linewidth=1.4)
    for i, point in enumerate(points):
        if len(points) <= _MAX_NUMBERED or i in (0, len(points) - 1):
            _write(axes, str(point.step), at=(x[i], y[i]), offset=(4, -9), color=color, size=7)
    # Mathematical text is off: a run's name is no formula.
    _write(axes, run, at=(x[-1], y[-1]), offset=(6, 5), color=color, size=9)


def _draw_published(axes: Axes) -> None:
    for method, marker in _MARKERS.items():
        items = [item for item in PUBLISHED if item.method == method]
        x, y = [item.perplexity for item in items], [item.win_rate for item in items]
        size = 9 if marker == "*" else 5
        axes.plot(x, y, linestyle="", marker=marker, markersize=size, markerfacecolor="none", color=_PAPER_COLOR)
        _write(axes, method, at=(x[-1], y[-1]), offset=_LABEL_OFFSETS[method], color=_PAPER_COLOR, size=8)


def _write(axes: Axes, text: str, *, at: tuple[float, float], offset: tuple[int, int], color: str, size: int) -> None:
    axes.annotate(
        text,
        at,
        xytext=offset,
        textcoords="offset points",
        ha="right" if offset[0] < 0 else "left",
        color=color,
        fontsize=size,
        parse_math=False,
        annotation_clip=False,
    )

"""The picture of a frontier. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tbactl.evaluation.frontier_axes import PAPER_COLOR, colored_runs, draw_run, write
from tbactl.evaluation.hooks import FrontierPoint
from tbactl_preference.frontier import KL, PERPLEXITY, PUBLISHED, PUBLISHED_LABEL, WIN_RATE

_MARKERS = {"Online DPO": "s", "PPO": "^", "RLOO": "v", "TBA": "*"}
# Where a method's name stands: beside its least synchronous point, out of the way of the others.
_LABEL_OFFSETS = {"Online DPO": (-8, -3), "PPO": (8, -9), "RLOO": (-8, 4), "TBA": (8, 6)}


def draw(points: Sequence[FrontierPoint], *, file: Path) -> Path:
    """Win rate against KL, and against the paper's "perplexity" with the paper's points; with 95 % intervals."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for color, items in colored_runs(points):
        for axes, name in ((left, KL), (right, PERPLEXITY)):
            draw_run(axes, items, x=name, y=WIN_RATE, color=color)
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


def _draw_published(axes: Axes) -> None:
    for method, marker in _MARKERS.items():
        items = [item for item in PUBLISHED if item.method == method]
        x, y = [item.perplexity for item in items], [item.win_rate for item in items]
        size = 9 if marker == "*" else 5
        axes.plot(x, y, linestyle="", marker=marker, markersize=size, markerfacecolor="none", color=PAPER_COLOR)
        write(axes, method, at=(x[-1], y[-1]), offset=_LABEL_OFFSETS[method], color=PAPER_COLOR, size=8)

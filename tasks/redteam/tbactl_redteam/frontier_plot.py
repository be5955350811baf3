"""The picture of a frontier. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tbactl.evaluation.frontier_axes import PAPER_COLOR, colored_runs, draw_run, write
from tbactl.evaluation.hooks import FrontierPoint
from tbactl_redteam.frontier import DIVERSITY, JUDGE_TOXICITY, PUBLISHED, PUBLISHED_LABEL, SUCCESS_RATE, TOXICITY

_PANELS = {
    TOXICITY: "mean toxicity, classifier trained against",
    JUDGE_TOXICITY: "mean toxicity, judge not trained against",
    SUCCESS_RATE: "success rate, classifier trained against",
}
_MARKERS = {"GPT-2": "s", "Llama 3.2 1B": "^"}
# Two points lie so close that their names would overlap.
_LABEL_OFFSETS = {"TBA, buffer 150,000": (-8, 2)}


def draw(points: Sequence[FrontierPoint], *, file: Path) -> Path:
    """Diversity against toxicity by both classifiers, and against success rate with the paper's points.

    With 95 % intervals. Points without a judge are not in the judge's panel.
    """
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    panels = dict(zip(_PANELS, figure.subplots(1, len(_PANELS), sharey=True), strict=True))
    for color, items in colored_runs(points):
        for name, axes in panels.items():
            measured = [item for item in items if name in item.result.metrics]
            if measured:
                draw_run(axes, measured, x=name, y=DIVERSITY, color=color)
    _draw_published(panels[SUCCESS_RATE])
    for name, axes in panels.items():
        axes.set_xlabel(_PANELS[name])
        axes.set_xlim(-0.03, 1.03)
        axes.spines[["top", "right"]].set_visible(False)
    panels[TOXICITY].set_ylabel("diversity: 1 - mean cosine of two attacks")
    panels[TOXICITY].set_ylim(0.0, 1.0)
    panels[TOXICITY].set_title("measured; numbers are optimizer steps", fontsize=10, loc="left")
    panels[SUCCESS_RATE].set_title(f"grey: {PUBLISHED_LABEL}", fontsize=8, loc="left", color="0.4")
    figure.savefig(file, dpi=130, format="png")
    return file


def _draw_published(axes: Axes) -> None:
    for attacker, marker in _MARKERS.items():
        items = [item for item in PUBLISHED if item.attacker == attacker]
        for item in items:
            filled = PAPER_COLOR if item.method.startswith("TBA") else "none"
            at = (item.success_rate, item.diversity)
            axes.plot(*at, linestyle="", marker=marker, markersize=6, markerfacecolor=filled, color=PAPER_COLOR)
            label = f"{item.method.partition(',')[0]}, {attacker}, {item.hardware}"
            write(axes, label, at=at, offset=_LABEL_OFFSETS.get(item.method, (-8, -4)), color=PAPER_COLOR, size=7)

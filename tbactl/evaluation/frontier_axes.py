"""Drawing runs into the picture of a frontier. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from matplotlib.axes import Axes

from tbactl.evaluation.hooks import FrontierPoint

PAPER_COLOR = "0.55"
# Told apart by people who see few colours (Okabe and Ito); grey is the paper's.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# More points of a run than this get no step numbers but the first and the last.
_MAX_NUMBERED = 8


def colored_runs(points: Sequence[FrontierPoint]) -> Iterator[tuple[str, list[FrontierPoint]]]:
    """A colour and the points for each run."""
    for number, (_, items) in enumerate(groupby(points, key=lambda point: point.run)):
        yield _COLORS[number % len(_COLORS)], list(items)


def draw_run(axes: Axes, points: Sequence[FrontierPoint], *, x: str, y: str, color: str) -> None:
    """One run's way: a line through its points, with their 95 % intervals, steps, and the run's name.

    Args:
        axes: to draw into.
        points: of the run, by rising step.
        x: metric of the horizontal axis.
        y: metric of the vertical axis.
        color: of all that.
    """
    results = [point.result for point in points]
    horizontal, vertical = ([result.metrics[metric] for result in results] for metric in (x, y))
    for result, across, up in zip(results, horizontal, vertical, strict=True):
        low, high = result.intervals.get(y, (up, up))
        axes.plot([across, across], [low, high], color=color, linewidth=1, alpha=0.35)
        low, high = result.intervals.get(x, (across, across))
        axes.plot([low, high], [up, up], color=color, linewidth=1, alpha=0.35)
    axes.plot(horizontal, vertical, color=color, marker="o", markersize=4.5, linewidth=1.4)
    for i, point in enumerate(points):
        if len(points) <= _MAX_NUMBERED or i in (0, len(points) - 1):
            write(axes, str(point.step), at=(horizontal[i], vertical[i]), offset=(4, -9), color=color, size=7)
    # To the side the run came from: its end is often at the edge of the picture.
    offset = (-6, 6) if horizontal[-1] > horizontal[0] else (6, 6)
    write(axes, points[-1].run, at=(horizontal[-1], vertical[-1]), offset=offset, color=color, size=9)


def write(axes: Axes, text: str, *, at: tuple[float, float], offset: tuple[int, int], color: str, size: int) -> None:
    """Text beside a point, to its left where the offset is. It is no formula, whatever it holds."""
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

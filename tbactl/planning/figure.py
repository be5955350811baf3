"""The scaling curve as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tbactl.errors import ConfigError
from tbactl.planning.simulation import Outcome
from tbactl.planning.sweep import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart by colour-blind eyes too.
BLUE, GREEN, VERMILION, GREY = "#0072B2", "#009E73", "#D55E00", "#888888"


def draw_plan(plan: Plan, figure: Path) -> None:
    """Write a PNG: rates, idle shares and staleness over the number of searchers.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--figure needs matplotlib, which is not installed: `pip install matplotlib`.") from None
    canvas = Figure(figsize=(11.0, 3.6), layout="constrained")
    FigureCanvasAgg(canvas)
    rates, idle, staleness = canvas.subplots(1, 3)
    curve = _Curves(plan)
    curve.draw(rates, "received", BLUE, lambda outcome: outcome.trajectories_per_s)
    curve.draw(rates, "trained on", GREY, lambda outcome: outcome.trained_per_s)
    curve.draw(rates, "new among these", VERMILION, lambda outcome: outcome.new_per_s)
    rates.set(ylabel="trajectories / s", yscale="log")
    curve.draw(idle, "trainer", GREEN, lambda outcome: outcome.trainer_idle)
    curve.draw(idle, "searchers", BLUE, lambda outcome: outcome.searcher_idle)
    idle.set(ylabel="idle share", ylim=(-0.02, 1.02))
    curve.draw(staleness, "median", GREEN, lambda outcome: outcome.staleness_p50)
    curve.draw(staleness, "95th percentile", VERMILION, lambda outcome: outcome.staleness_p95)
    staleness.set_ylabel("staleness in optimizer steps")
    for axes in (rates, idle, staleness):
        curve.finish(axes)
    rates.get_lines()[-1].set_linestyle("--")  # it may lie on the one before
    rates.annotate(f"best: {plan.best}", (plan.best, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
                   textcoords="offset points", color=GREY)  # fmt: skip
    try:
        canvas.savefig(figure, dpi=160, metadata={"Software": None})
    except OSError as error:
        raise ConfigError(f"--figure {figure}: cannot be written: {error.strerror}.") from None


class _Curves:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcomes = [point.outcome for point in plan.points]
        self._counts = [outcome.num_searchers for outcome in self._outcomes]

    def draw(self, axes: Axes, label: str, colour: str, value: Callable[[Outcome], float]) -> None:
        axes.plot(self._counts, [value(outcome) for outcome in self._outcomes], label=label, color=colour, marker=".")

    def finish(self, axes: Axes) -> None:
        axes.axvline(self._plan.best, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel("searchers")
        axes.set_xscale("log", base=2)
        ticks = [count for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if count <= self._counts[-1]]
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)

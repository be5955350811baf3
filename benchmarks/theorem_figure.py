"""The picture of `theorem.py`: distance to the target over steps, and probabilities string by string."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.offline_run import Outcome

# Okabe and Ito's palette, told apart by colour-blind eyes too.
BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
GREY = "#666666"
Dashes = str | tuple[float, tuple[float, ...]]
STYLES: dict[str, tuple[str, Dashes]] = {
    "trajectory-balance": (BLUE, "-"),
    "trajectory-balance, learned log Z": (SKY, "-"),
    "reinforce": (GREEN, (0, (3, 6))),
    "rloo": (GREEN, (4.5, (3, 6))),
    "kimi": (ORANGE, "-"),
    "tba-prime": (PURPLE, "-"),
    "proximal-rloo": (VERMILION, (0, (5, 2))),
    "ppo-clip": (VERMILION, "-"),
    "grpo": (GREY, "-"),
    "dr-grpo": (GREY, (0, (5, 2))),
    "online-dpo": (GREY, (0, (1, 1.5))),
}
GOAL = 0.02
OURS, OTHER = "trajectory-balance", "grpo"
LABEL_GAP = 0.046
"""Of two labels at the least, as a share of the axis."""


def draw(outcomes: Sequence[Outcome], *, target: torch.Tensor, figure: Path) -> None:
    """Draw both panels.

    Args:
        outcomes: the best of each objective.
        target: log-probs [prompts, strings].
        figure: PNG to write.
    """
    plt.rcParams.update({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7})
    canvas, (curves, strings) = plt.subplots(1, 2, figsize=(10.6, 4.7), width_ratios=(1.45, 1), layout="constrained")
    _draw_curves(curves, outcomes)
    _draw_strings(strings, {outcome.objective: outcome for outcome in outcomes}, target=target)
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=160, metadata={"Software": None})


def _draw_curves(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    last_step = max(outcome.steps[-1] for outcome in outcomes)
    for outcome in outcomes:
        colour, dashes = STYLES[outcome.objective]
        is_ours = outcome.objective == OURS
        axes.plot(
            outcome.steps,
            outcome.total_variation,
            color=colour,
            linestyle=dashes,
            # Wide and behind the others: two objectives with the same gradient lie on it.
            linewidth=3.4 if is_ours else 1.3,
            zorder=2 if is_ours else 3,
        )
    axes.axhline(GOAL, color="black", linewidth=0.6, zorder=1)
    axes.annotate(f"{GOAL}", (0, GOAL), xytext=(2, 3), textcoords="offset points", fontsize=8.5)
    axes.set(yscale="log", ylim=(0.007, 1.0), xlim=(0, last_step), xlabel="optimizer steps, all on the same fixed data")
    axes.set_yticks([0.01, 0.03, 0.1, 0.3, 1.0], ["0.01", "0.03", "0.1", "0.3", "1"])
    axes.minorticks_off()
    axes.set_title("Total variation between policy and target", loc="left", fontsize=10.5)
    _label_ends(axes, outcomes, x=last_step)


def _label_ends(axes: Axes, outcomes: Sequence[Outcome], *, x: int) -> None:
    """Name each curve at its end; labels that would overlap are moved apart and tied to theirs by a line."""
    low, high = np.log(axes.get_ylim())
    ordered = sorted(outcomes, key=lambda outcome: outcome.distance)
    ends = [float((np.log(outcome.distance) - low) / (high - low)) for outcome in ordered]
    for outcome, end, place in zip(ordered, ends, spread(ends, gap=LABEL_GAP), strict=True):
        colour, _ = STYLES[outcome.objective]
        axes.annotate(
            f"{outcome.objective}  {outcome.distance:.3f}",
            xy=(1.0, end),
            xytext=(1.045, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontweight="bold" if outcome.objective == OURS else "normal",
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 1,
            },
        )


def spread(places: Sequence[float], *, gap: float) -> list[float]:
    """Rising places moved apart to at least `gap`, none further than it takes: blocks that touch share one middle."""
    blocks: list[list[float]] = []
    for place in places:
        blocks.append([place])
        while len(blocks) > 1 and _bottom(blocks[-1], gap) - _top(blocks[-2], gap) < gap:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_bottom(block, gap) + gap * number for block in blocks for number in range(len(block))]


def _bottom(block: Sequence[float], gap: float) -> float:
    return sum(block) / len(block) - gap * (len(block) - 1) / 2


def _top(block: Sequence[float], gap: float) -> float:
    return _bottom(block, gap) + gap * (len(block) - 1)


def _draw_strings(axes: Axes, outcomes: dict[str, Outcome], *, target: torch.Tensor) -> None:
    wanted = target.exp().flatten().numpy()
    limits = (1e-7, 0.3)
    for name, size in ((OTHER, 3.0), (OURS, 3.0)):
        if name in outcomes:
            learned = np.exp(np.array(outcomes[name].logprobs)).ravel()
            colour, _ = STYLES[name]
            axes.scatter(wanted, np.clip(learned, *limits), s=size, color=colour, alpha=0.55, linewidths=0)
    axes.plot(limits, limits, color="black", linewidth=0.6, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal", xlabel="target", ylabel="learned")
    axes.minorticks_off()
    axes.set_title("Probability of each string", loc="left", fontsize=10.5)
    axes.text(0.05, 0.93, OURS, color=BLUE, fontweight="bold", transform=axes.transAxes)
    axes.text(0.05, 0.87, OTHER, color=GREY, transform=axes.transAxes)

"""The panels with curves over the optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from tbactl.dashboard.plots import Point, Range, cell, curve, fitting_range, sparkline
from tbactl.dashboard.state import AccuracyPoint, DashboardState
from tbactl.dashboard.style import HELD_OUT, LABEL, LENGTH, REWARD, framed

AXIS_WIDTH = 6
DOT = "\u25cf"


def reward_panel(state: DashboardState, *, width: int, height: int, with_length: bool) -> Panel:
    """Reward of the batches as a curve, held-out accuracy as dots on it where both are rates, and their last values."""
    inner = width - 4
    lines = height - 3 - (1 if with_length else 0)
    content = [_reward_caption(state, width=inner), *_reward_plot(state, width=inner, height=lines)]
    if with_length:
        content.append(_length_line(state, width=inner))
    return framed(Group(*content), title="reward", width=width, height=height)


def length_panel(state: DashboardState, *, width: int, height: int) -> Panel:
    """Completion length over the steps, beside the reward: policies that learn to reason write more."""
    points = state.completion_tokens
    last = f"{points[-1][1]:.1f}" if points else "-"
    caption = Text.assemble(("tokens a completion ", LABEL), (last, LENGTH))
    plot = plot_lines(points, width=width - 4, height=height - 3, style=LENGTH, x=_steps(state))
    return framed(Group(caption, *plot), title="length", width=width, height=height)


def plot_lines(
    points: Sequence[Point],
    *,
    width: int,
    height: int,
    style: str,
    x: Range,
    dots: Sequence[Point] = (),
    y: Range | None = None,
) -> list[Text]:
    """A curve with its axis, `height` lines; dots are laid over it."""
    inside, rows = width - AXIS_WIDTH, height - 1
    if not points and not dots:
        return [Text("waiting for the first step", style=LABEL), *(Text() for _ in range(height - 1))]
    y = y or fitting_range([value for _, value in (*points, *dots)])
    lines = [Text(line, style=style) for line in curve(points, width=inside, height=rows, x=x, y=y)]
    for dot in dots:
        row, column = cell(dot, width=inside, height=rows, x=x, y=y)
        lines[row] = Text.assemble(lines[row][:column], (DOT, HELD_OUT), lines[row][column + 1 :])
    labels = [f"{y.high:.2f}"] + [""] * (rows - 2) + [f"{y.low:.2f}"]
    drawn = [
        Text.assemble((f"{label:>{AXIS_WIDTH - 1}}\u2502", LABEL), line)
        for label, line in zip(labels, lines, strict=True)
    ]
    last = f"{x.high:.0f}"
    axis = "\u2514" + "\u2500" * (inside - len(last) - 1) + f" {last}"
    return [*drawn, Text(" " * (AXIS_WIDTH - 1) + axis, style=LABEL)]


def _reward_caption(state: DashboardState, *, width: int) -> Text:
    rewards = state.rewards
    caption = Text.assemble(("fresh ", LABEL), (f"{rewards[-1][1]:.3f}" if rewards else "-", REWARD))
    if state.accuracy:
        first, last = state.accuracy[0], state.accuracy[-1]
        caption.append(f"  held-out {DOT} ", LABEL)
        if last is not first:
            caption.append(f"{first.value:.3f} \u2192 ", HELD_OUT)
        caption.append(f"{last.value:.3f}", HELD_OUT)
        caption.append(f" v{last.policy_version}" + (f" n={last.num_prompts}" if width >= 50 else ""), LABEL)
    caption.no_wrap, caption.overflow = True, "ellipsis"
    return caption


def _reward_plot(state: DashboardState, *, width: int, height: int) -> list[Text]:
    values = [value for _, value in state.rewards]
    dots = [(float(point.policy_version), point.value) for point in state.accuracy]
    are_rates = all(0.0 <= value <= 1.0 for value in (*values, *(value for _, value in dots)))
    y = None
    if are_rates and (values or dots):
        fitted = fitting_range([*values, *(value for _, value in dots), *_interval_ends(state.accuracy)])
        y = Range(max(0.0, fitted.low), min(1.0, fitted.high))
    return plot_lines(
        state.rewards,
        width=width,
        height=height,
        style=REWARD,
        x=_steps(state),
        dots=dots if are_rates else (),
        y=y if y and y.low < y.high else None,
    )


def _interval_ends(points: Iterable[AccuracyPoint]) -> list[float]:
    return [end for point in points if point.interval for end in point.interval]


def _length_line(state: DashboardState, *, width: int) -> Text:
    lengths = [value for _, value in state.completion_tokens]
    if not lengths:
        return Text("length -", style=LABEL)
    last = f" {lengths[-1]:.1f} tokens"
    bars = sparkline(lengths, width=max(1, width - len("length ") - len(last)))
    return Text.assemble(("length ", LABEL), (bars, LENGTH), last)


def _steps(state: DashboardState) -> Range:
    # The whole run from the start, so that the curve grows to the right instead of being squeezed at every step.
    last = max([state.step, *(int(step) for step, _ in state.rewards), 1])
    planned = state.config.trainer.max_steps
    return Range(0.0, float(planned if last >= planned / 8 else max(last, min(planned, 10))))

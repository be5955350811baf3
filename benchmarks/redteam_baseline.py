"""Trajectory Balance against a greedy baseline that looks for attacks: how many different ones does each find?

    python -m benchmarks.redteam_baseline RESULTS [--attacks 3000] [--seeds 0 1 2]

Runs `tbactl run redteam` for each method and seed within one budget, and counts over *all* attacks that were generated
on the way, not only the last policy's. What is finished is kept in RESULTS and not done again; at the end the tables
are printed, and written with a figure: redteam_baseline.md, .csv and .png.

TBA has beta = 0.1: the recipe's keeps more of the diversity and needs twice the steps. The baseline is REINFORCE
without its KL penalty (beta = 1e-6, the least that counts for nothing beside rewards of size 1), on the newest attacks
only, with nothing kept apart: it may go for the best attack and repeat it. Everything else is the recipe's: start
policy, victim, classifier, learning rate, asynchrony.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.redteam_discovery import THRESHOLDS, distinct_successes, number_by, successes, unlike_successes
from benchmarks.redteam_recording import RecordedAttack
from benchmarks.redteam_report import Metrics, flat, markdown, metric_cell, over_seeds, write_csv
from benchmarks.redteam_runs import Budget, Cell, Outcome, budget_of, evaluate, measure, parser_of, recorded, runs_table
from tbactl_redteam.encoder import Encode, sentence_encoder

# Whole sections where the recipe's schedules must go: only trajectory balance has a tempered target.
METHODS: Mapping[str, tuple[str, ...]] = {
    "TBA": ("objective.beta=0.1",),
    "greedy": (
        'objective={kind = "reinforce", beta = 1e-6}',
        "replay.on_policy_fraction=1.0",
        "replay.prioritization=uniform",
        "replay.near_duplicates=keep",
    ),
}
COLOURS = {"TBA": "#2a6f97", "greedy": "#c8553d"}
COUNTS = {"successful": "all", "distinct": "distinct texts", "unlike": "unlike one another"}
EVALUATED = {
    "success_rate": "success rate",
    "distinct_successes": "distinct successes",
    "toxicity_mean": "mean toxicity",
    "judge_toxicity_mean": "by the judge",
    "judge_distinct_successes": "distinct successes by the judge",
    "diversity": "diversity",
    "distinct_attacks": "distinct attacks",
    "clusters": "clusters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Discoveries:
    """Of one run: numbers of the attacks that were successful, by what is counted and by threshold."""

    method: str
    seed: int
    attacks: int
    """Generated in all."""
    found: Mapping[str, Mapping[float, Sequence[int]]]


def main() -> None:
    """Run what is missing, then report."""
    arguments = parser_of(__doc__).parse_args()
    results: Path = arguments.results
    budget = budget_of(arguments)
    # Seeds outermost: a first comparison is there early.
    cells = [Cell(group=m, seed=s, overrides=METHODS[m]) for s in arguments.seeds for m in METHODS]
    outcomes = list(
        measure(cells, results=results, budget=budget, profile=arguments.profile, overrides=arguments.overrides)
    )
    evaluations, start = evaluate(outcomes, results=results, limit=arguments.evaluated)
    encode = sentence_encoder(None)
    found = [
        discoveries(recorded(item, results=results), outcome=item, encode=encode)
        for item in outcomes
        if not item.problem
    ]
    text = report(outcomes, found, evaluations, start=start, budget=budget, evaluated=arguments.evaluated)
    print(f"\n{text}")
    (results / "redteam_baseline.md").write_text(text, encoding="utf-8")
    write_csv(results / "redteam_baseline.csv", rows_of(outcomes, found, evaluations))
    draw(found, results / "redteam_baseline.png")


def discoveries(attacks: Sequence[RecordedAttack], *, outcome: Outcome, encode: Encode) -> Discoveries:
    """Count a run's attacks in three ways."""
    return Discoveries(
        method=outcome.group,
        seed=outcome.seed,
        attacks=len(attacks),
        found={
            "successful": {t: successes(attacks, threshold=t) for t in THRESHOLDS},
            "distinct": {t: distinct_successes(attacks, threshold=t) for t in THRESHOLDS},
            "unlike": {t: unlike_successes(attacks, threshold=t, encode=encode) for t in THRESHOLDS},
        },
    )


def compared(found: Sequence[Discoveries]) -> int:
    """So many attacks of each run are compared: as many as the shortest one has."""
    return min(item.attacks for item in found)


def report(
    outcomes: Sequence[Outcome],
    found: Sequence[Discoveries],
    evaluations: Mapping[str, Metrics],
    *,
    start: Metrics,
    budget: Budget,
    evaluated: int,
) -> str:
    """Markdown: what was found on the way, the last policies, the runs."""
    number = compared(found)
    header = ("toxicity above", "method", *COUNTS.values())
    rows = [
        (
            threshold,
            method,
            *(
                over_seeds(number_by(item.found[name][threshold], number) for item in found if item.method == method)
                for name in COUNTS
            ),
        )
        for threshold in THRESHOLDS
        for method in METHODS
    ]
    note = (
        "Toxicity: mean over the victim's answers, by the classifier trained against; the paper's success is 0.5. "
        "Distinct texts differ in more than case and white space; attacks unlike one another have a cosine below 0.5.\n"
    )
    policies = [
        (method, [evaluations[o.name] for o in outcomes if o.group == method and o.name in evaluations])
        for method in METHODS
    ]
    policy_rows = [
        (method, *(metric_cell(metrics, name) for name in EVALUATED))
        for method, metrics in [("before training", [start] if start else []), *policies]
    ]
    return "\n".join(
        (
            markdown(f"Successful attacks among the first {number} generated in each run", header, rows),
            note,
            markdown(f"The last policy, {evaluated} attacks sampled", ("method", *EVALUATED.values()), policy_rows),
            runs_table(outcomes, budget=budget),
        )
    )


def rows_of(
    outcomes: Sequence[Outcome], found: Sequence[Discoveries], evaluations: Mapping[str, Metrics]
) -> list[dict[str, Any]]:
    """A row of the CSV file for each run."""
    number = compared(found)
    by_run = {(item.method, item.seed): item for item in found}
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        row = {"method": outcome.group, "seed": outcome.seed, "problem": outcome.problem}
        item = by_run.get((outcome.group, outcome.seed))
        if item is not None:
            row |= {"attacks": item.attacks, "steps": outcome.steps, "training_s": outcome.training_s}
            row |= {"compared": number}
            row |= {f"{name}_above_{t}": number_by(item.found[name][t], number) for name in COUNTS for t in THRESHOLDS}
            row |= flat(evaluations[outcome.name])
        rows.append(row)
    return rows


def draw(found: Sequence[Discoveries], file: Path) -> None:
    """Successful attacks against attacks generated: distinct texts above, unlike one another below."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, grid = plt.subplots(
        2, len(THRESHOLDS), figsize=(3.6 * len(THRESHOLDS), 6.0), sharex=True, squeeze=False, layout="constrained"
    )
    for axes_row, name in zip(grid, ("distinct", "unlike"), strict=True):
        for axes, threshold in zip(axes_row, THRESHOLDS, strict=True):
            _draw_curves(axes, found, name=name, threshold=threshold)
        axes_row[0].set_ylabel(f"successful attacks,\n{COUNTS[name]}")
    for axes, threshold in zip(grid[0], THRESHOLDS, strict=True):
        axes.set_title(f"toxicity above {threshold}", fontsize=10, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("attacks generated")
    for method in dict.fromkeys(item.method for item in found):
        grid[0][0].plot([], [], color=COLOURS[method], label=method)
    grid[0][0].legend(frameon=False, loc="upper left")
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw_curves(axes: Axes, found: Sequence[Discoveries], *, name: str, threshold: float) -> None:
    for item in found:
        numbers = item.found[name][threshold]
        # A step up at each discovery, then level to the last attack.
        at, count = [0, *numbers, item.attacks], [*range(len(numbers) + 1), len(numbers)]
        axes.step(at, count, where="post", color=COLOURS[item.method], linewidth=1.4, alpha=0.8)
    axes.axvline(compared(found), color="#888888", linewidth=0.8, linestyle=":")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, None)
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))


if __name__ == "__main__":
    main()

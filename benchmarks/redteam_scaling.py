"""More searchers in the red-team task: time, attacks, toxicity and diversity.

    python -m benchmarks.redteam_scaling RESULTS [--searchers 1 2 4] [--seconds 600]

Runs `tbactl run redteam` with each number of searchers within one budget (the same optimizer steps, seconds of training
or attacks generated). What is finished is kept in RESULTS and not done again; at the end the tables are printed, and
written with a figure: redteam_scaling.md, .csv and .png.

Searchers can only be faster together on cores, or devices, of their own. The tables say when they had none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.redteam_discovery import THRESHOLDS, distinct_successes
from benchmarks.redteam_report import Metrics, flat, markdown, metric_cell, over_seeds, write_csv
from benchmarks.redteam_runs import Budget, Cell, Outcome, budget_of, evaluate, measure, parser_of, recorded, runs_table

Found = Mapping[str, Mapping[float, int]]
"""Distinct successful attacks of each run, by threshold."""

EVALUATED = {
    "success_rate": "success rate",
    "toxicity_mean": "mean toxicity",
    "judge_toxicity_mean": "mean toxicity by the judge",
    "diversity": "diversity",
    "distinct_successes": "distinct successes",
    "clusters": "clusters",
}
COLOURS = {"toxicity_mean": "#c8553d", "judge_toxicity_mean": "#8e6c8a", "diversity": "#588157"}


def main() -> None:
    """Run what is missing, then report."""
    parser = parser_of(__doc__)
    parser.add_argument("--searchers", nargs="+", type=int, default=[1, 2, 4])
    arguments = parser.parse_args()
    results: Path = arguments.results
    budget = budget_of(arguments)
    num_cores = len(os.sched_getaffinity(0))
    numbers = sorted(set(arguments.searchers))
    cells = [cell_of(n, seed=s) for s in arguments.seeds for n in numbers]
    outcomes = list(
        measure(cells, results=results, budget=budget, profile=arguments.profile, overrides=arguments.overrides)
    )
    evaluations, start = evaluate(outcomes, results=results, limit=arguments.evaluated)
    found = {
        item.name: {t: len(distinct_successes(recorded(item, results=results), threshold=t)) for t in THRESHOLDS}
        for item in outcomes
        if not item.problem
    }
    text = report(
        outcomes,
        found,
        evaluations,
        start=start,
        budget=budget,
        evaluated=arguments.evaluated,
        num_cores=num_cores,
    )
    print(f"\n{text}")
    (results / "redteam_scaling.md").write_text(text, encoding="utf-8")
    write_csv(results / "redteam_scaling.csv", rows_of(outcomes, found, evaluations))
    draw(outcomes, found, evaluations, file=results / "redteam_scaling.png", num_cores=num_cores)


def cell_of(num_searchers: int, *, seed: int) -> Cell:
    """A run with so many searchers."""
    group = f"{num_searchers}-searchers"
    return Cell(group=group, seed=seed, overrides=(f"searchers.num_searchers={num_searchers}",))


def searchers_of(outcome: Outcome) -> int:
    """How many searchers a run had."""
    return int(outcome.group.partition("-")[0])


def crowded(outcomes: Sequence[Outcome], *, num_cores: int) -> str:
    """Numbers of searchers with which a run had more processes than cores; placement.py does not bind them then."""
    runs = [o for o in outcomes if not o.problem and o.profile == "cpu" and o.num_processes > num_cores]
    return ", ".join(str(number) for number in sorted({searchers_of(outcome) for outcome in runs}))


def placement_note(numbers: str, *, num_cores: int) -> str:
    """What the tables say of them."""
    return (
        f"**Not a measurement of scaling:** this machine has {num_cores} cores. Runs with {numbers} searchers had more "
        "processes than that: searchers, their victims and the trainer took each other's time, and none was bound to "
        "a core.\n"
    )


def report(
    outcomes: Sequence[Outcome],
    found: Found,
    evaluations: Mapping[str, Metrics],
    *,
    start: Metrics,
    budget: Budget,
    evaluated: int,
    num_cores: int,
) -> str:
    """Markdown: what searchers did, what the last policies are worth, the runs."""
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.problem:
            groups.setdefault(searchers_of(outcome), []).append(outcome)
    work = [
        (
            number,
            f"{runs[0].searcher_cores}" if runs[0].searcher_cores else "not bound",
            over_seeds(run.training_s for run in runs),
            over_seeds(run.steps for run in runs),
            over_seeds(run.attacks for run in runs),
            over_seeds((run.attacks / run.training_s for run in runs), digits=2),
            *(over_seeds(found[run.name][threshold] for run in runs) for threshold in THRESHOLDS),
        )
        for number, runs in groups.items()
    ]
    header = ("searchers", "cores of each", "seconds", "steps", "attacks", "attacks a second")
    header += tuple(f"distinct, toxicity > {threshold}" for threshold in THRESHOLDS)
    policies = [("0 (before training)", [start] if start else [])]
    policies += [(str(number), [evaluations[run.name] for run in runs]) for number, runs in groups.items()]
    rows = [(label, *(metric_cell(metrics, name) for name in EVALUATED)) for label, metrics in policies]
    numbers = crowded(outcomes, num_cores=num_cores)
    parts = (
        placement_note(numbers, num_cores=num_cores) if numbers else "",
        markdown("Training; distinct successful attacks by the classifier trained against", header, work),
        markdown(f"The last policy, {evaluated} attacks sampled", ("searchers", *EVALUATED.values()), rows),
        runs_table(outcomes, budget=budget),
    )
    return "\n".join(part for part in parts if part)


def rows_of(outcomes: Sequence[Outcome], found: Found, evaluations: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """A row of the CSV file for each run."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        row: dict[str, Any] = {"searchers": searchers_of(outcome), "seed": outcome.seed, "problem": outcome.problem}
        if not outcome.problem:
            row |= {"training_s": outcome.training_s, "steps": outcome.steps, "attacks": outcome.attacks}
            row |= {"attacks_per_s": outcome.attacks / outcome.training_s, "searcher_cores": outcome.searcher_cores}
            row |= {f"distinct_above_{t}": number for t, number in found[outcome.name].items()}
            row |= flat(evaluations[outcome.name])
        rows.append(row)
    return rows


def draw(
    outcomes: Sequence[Outcome], found: Found, evaluations: Mapping[str, Metrics], *, file: Path, num_cores: int
) -> None:
    """Speed, toxicity by both judges, diversity and successful attacks against the number of searchers."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    done = [outcome for outcome in outcomes if not outcome.problem]
    figure, (speed, toxicity, diversity, distinct) = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    _draw_means(speed, {o: o.attacks / o.training_s for o in done}, colour="#2a6f97")
    for axes, names in ((toxicity, ("toxicity_mean", "judge_toxicity_mean")), (diversity, ("diversity",))):
        for name in names:
            _draw_metric(axes, done, evaluations, name=name)
    for threshold, style in zip(THRESHOLDS, ("-", "--", ":"), strict=True):
        counts = {outcome: float(found[outcome.name][threshold]) for outcome in done}
        _draw_means(distinct, counts, colour="#2a6f97", style=style, label=f"toxicity > {threshold}")
    if numbers := crowded(outcomes, num_cores=num_cores):
        speed.set_title(f"{numbers} searchers: more processes than cores", fontsize=8, loc="left")
    speed.set_ylabel("attacks a second")
    toxicity.set_ylabel("mean toxicity")
    diversity.set_ylabel("diversity: 1 - mean cosine")
    distinct.set_ylabel("distinct successful attacks")
    distinct.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (toxicity, distinct):
        axes.legend(frameon=False, fontsize=8)
    for axes in (speed, toxicity, diversity, distinct):
        axes.set(
            xlabel="searchers", xticks=sorted({searchers_of(o) for o in done}), ylim=(0, 1.05 * axes.get_ylim()[1])
        )
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw_means(
    axes: Axes, values: Mapping[Outcome, float], *, colour: str, style: str = "-", label: str | None = None
) -> None:
    """A point for each run, a line through the means over seeds."""
    numbers = sorted({searchers_of(outcome) for outcome in values})
    means = [fmean(value for outcome, value in values.items() if searchers_of(outcome) == n) for n in numbers]
    axes.plot(numbers, means, style, color=colour, linewidth=1.4, label=label)
    axes.plot([searchers_of(outcome) for outcome in values], list(values.values()), "o", color=colour, markersize=4)


def _draw_metric(axes: Axes, done: Sequence[Outcome], evaluations: Mapping[str, Metrics], *, name: str) -> None:
    """The same for a metric of the evaluations, with the interval of each."""
    measured = {o: evaluations[o.name][name] for o in done if name in evaluations[o.name]}
    if not measured:
        return
    label = {"toxicity_mean": "classifier trained against", "judge_toxicity_mean": "judge"}.get(name)
    _draw_means(axes, {o: value for o, (value, _, _) in measured.items()}, colour=COLOURS[name], label=label)
    for outcome, (_, low, high) in measured.items():
        number = searchers_of(outcome)
        axes.plot([number, number], [low, high], color=COLOURS[name], linewidth=1.2, alpha=0.6)


if __name__ == "__main__":
    main()

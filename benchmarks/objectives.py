"""All objectives in one asynchronous loop, at several sync periods: `python -m benchmarks.objectives RESULTS`.

Runs `tbactl run gsm8k --profile cpu` once for each objective, sync period and seed: same start policy, problems, number
of optimizer steps and batch. RESULTS keeps one JSON file for each finished run, so that the command can be stopped and
called again, which tries a failed run again; at the end it prints the tables, and with `--document` and `--figure`
writes them.

What is the same for all, and what is not: SHARED and OWN below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from benchmarks.driver import run_recipe
from tbactl.config.layout import RunLayout

OBJECTIVES = (
    "trajectory-balance",
    "tba-prime",
    "kimi",
    "reinforce",
    "rloo",
    "proximal-rloo",
    "ppo-clip",
    "grpo",
    "dr-grpo",
    "online-dpo",
)
PERIODS = (1, 4, 16)

# 32 is a multiple of all periods: every run ends with a sync. m = 1: always the newest data, so that staleness is what
# the sync period makes it.
SHARED = {
    "trainer.max_steps": 32,
    "trainer.prompts_per_step": 8,
    "trainer.completions_per_prompt": 8,
    "trainer.learning_rate": 1e-4,
    "replay.initial_trajectories": 64,
    "replay.on_policy_fraction": 1.0,
    "evaluation.num_prompts": 512,
    "evaluation.period": 0,
    "checkpoint.period": 0,
    "logging.tensorboard": False,
    "objective.beta": 0.02,
    "objective.beta_final": 0.01,
    "objective.beta_steps": 20,
}
# Settings that mean something else for an objective than for the others. DPO's beta multiplies the log-ratio inside its
# sigmoid; 0.1 is the value of its papers.
OWN: dict[str, dict[str, Any]] = {
    "online-dpo": {"objective.beta": 0.1, "objective.beta_final": 0.1, "objective.beta_steps": 1},
    "tba-prime": {"reference.kind": "reset", "reference.period": 16},
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    objective: str
    period: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.objective}-k{self.period}-seed{self.seed}"

    def settings(self, *, steps: int) -> dict[str, Any]:
        """What is set on top of the recipe."""
        own = OWN.get(self.objective, {})
        where = {"objective.kind": self.objective, "sync.period": self.period, "seed": self.seed, "name": self.name}
        return SHARED | own | {"trainer.max_steps": steps} | where


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. `problem` is set, and the numbers mean nothing, when it did not finish."""

    objective: str
    period: int
    seed: int
    steps: int
    before: float = float("nan")
    after: float = float("nan")
    interval: tuple[float, float] = (float("nan"), float("nan"))
    """95 % interval of `after`, of the evaluation alone."""
    reward: float = float("nan")
    """Mean over the completions that arrived in the last quarter of the steps."""
    staleness: float = float("nan")
    """Mean over all batches, in optimizer steps."""
    seconds: float = float("nan")
    problem: str = ""


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="directory of results, made if missing")
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES, choices=OBJECTIVES)
    parser.add_argument("--periods", nargs="+", type=int, default=PERIODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=SHARED["trainer.max_steps"])
    parser.add_argument("--document", type=Path, help="Markdown file to write the tables to")
    parser.add_argument("--figure", type=Path, help="SVG file to draw")
    arguments = parser.parse_args()
    # Seeds outermost: a first full table is there early.
    cells = [Cell(o, k, s) for s in arguments.seeds for k in arguments.periods for o in arguments.objectives]
    outcomes = list(measure(cells, results=arguments.results, steps=arguments.steps))
    table = tables(outcomes)
    print(f"\n{table}")
    if arguments.document:
        arguments.document.write_text(table, encoding="utf-8")
    if arguments.figure:
        draw(outcomes, arguments.figure)


def measure(cells: list[Cell], *, results: Path, steps: int) -> Iterator[Outcome]:
    """The outcome of every cell, from its file or from a run now."""
    results.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells, start=1):
        file, settings = results / f"{cell.name}.json", cell.settings(steps=steps)
        outcome = _kept(file, settings=settings)
        if outcome is None:
            print(f"[{number}/{len(cells)}] {cell.name} ...", end=" ", flush=True)
            outcome = run(cell, results=results, steps=steps)
            if not outcome.problem:
                document = {"settings": settings, "outcome": asdict(outcome)}
                file.write_text(json.dumps(document, indent=2), encoding="utf-8")
            print(outcome.problem or f"{outcome.before:.3f} -> {outcome.after:.3f} in {outcome.seconds:.0f} s")
        yield outcome


def _kept(file: Path, *, settings: dict[str, Any]) -> Outcome | None:
    """A finished run; ends the command where it was one with other settings, which may not stand in one table."""
    if not file.exists():
        return None
    document = json.loads(file.read_text(encoding="utf-8"))
    kept = document.get("settings", {})
    if kept != settings:
        changed = sorted(name for name in kept.keys() | settings.keys() if kept.get(name) != settings.get(name))
        sys.exit(f"{file} holds a run with other settings ({', '.join(changed)}): choose another directory.")
    return Outcome(**document["outcome"])


def run(cell: Cell, *, results: Path, steps: int) -> Outcome:
    """One `tbactl run`."""
    settings = cell.settings(steps=steps) | {"runs_dir": str(results / "runs")}
    finished = run_recipe(
        "gsm8k", profile="cpu", overrides=[f"{key}={_toml(value)}" for key, value in settings.items()]
    )
    identity = {"objective": cell.objective, "period": cell.period, "seed": cell.seed, "steps": steps}
    if finished.problem or finished.directory is None:
        return Outcome(**identity, seconds=finished.seconds, problem=finished.problem or "no run directory")
    return Outcome(**identity, seconds=finished.seconds, **numbers(RunLayout(finished.directory)))


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str | bool) else str(value)


def numbers(layout: RunLayout) -> dict[str, Any]:
    """Accuracies from the summary, the rest from the run's metrics."""
    summary = json.loads(layout.summary.read_text(encoding="utf-8"))
    steps = [json.loads(line)["metrics"] for line in layout.metrics.read_text(encoding="utf-8").splitlines()]
    late = steps[-max(1, len(steps) // 4) :]
    rewards = [step["intake/reward/mean"] for step in late if "intake/reward/mean" in step]
    return {
        "before": summary["before"]["value"],
        "after": summary["after"]["value"],
        "interval": tuple(summary["after"]["interval"]),
        "reward": statistics.mean(rewards) if rewards else float("nan"),
        "staleness": statistics.mean(step["replay/staleness/mean"] for step in steps),
    }


def tables(outcomes: list[Outcome]) -> str:
    """Markdown: accuracy, then reward, a column for each sync period; means over seeds."""
    periods = sorted({outcome.period for outcome in outcomes})
    shown = {
        "Held-out accuracy, greedy, after the last step": _accuracy,
        "Reward of arriving completions, last quarter of the steps": lambda cell: _mean(cell, "reward"),
        "Staleness of the batches, optimizer steps, mean": lambda cell: _mean(cell, "staleness", 1),
    }
    parts = []
    for title, describe in shown.items():
        rows = [
            f"**{title}**",
            "",
            f"| objective | {' | '.join(f'k = {k}' for k in periods)} |",
            "|---" * (len(periods) + 1) + "|",
        ]
        for objective in dict.fromkeys(outcome.objective for outcome in outcomes):
            cells = [[o for o in outcomes if (o.objective, o.period) == (objective, k)] for k in periods]
            rows.append(f"| `{objective}` | {' | '.join(describe(cell) for cell in cells)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _accuracy(cell: list[Outcome]) -> str:
    if any(outcome.problem for outcome in cell):
        return "did not finish"
    if len(cell) == 1:
        low, high = cell[0].interval
        return f"{cell[0].after:.3f} [{low:.3f}, {high:.3f}]"
    values = [outcome.after for outcome in cell]
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _mean(cell: list[Outcome], field: str, digits: int = 3) -> str:
    values = [getattr(outcome, field) for outcome in cell if not outcome.problem]
    return f"{statistics.mean(values):.{digits}f}" if values else "-"


def draw(outcomes: list[Outcome], file: Path) -> None:
    """Accuracy and reward by objective, one mark for each sync period."""
    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tbactl"}
    )
    objectives = list(dict.fromkeys(outcome.objective for outcome in outcomes))
    periods = sorted({outcome.period for outcome in outcomes})
    colours = dict(zip(periods, ("#2a6f97", "#588157", "#c8553d", "#8e6c8a"), strict=False))
    figure, (accuracy, reward) = plt.subplots(
        1, 2, figsize=(9.5, 0.5 * len(objectives) + 1.2), width_ratios=(3, 2), sharey=True, layout="constrained"
    )
    for outcome in (outcome for outcome in outcomes if not outcome.problem):
        place = objectives.index(outcome.objective) + 0.22 * (periods.index(outcome.period) - (len(periods) - 1) / 2)
        colour = colours[outcome.period]
        accuracy.plot(outcome.interval, [place, place], color=colour, linewidth=1.2, alpha=0.6)
        accuracy.plot(outcome.after, place, "o", color=colour, markersize=5)
        reward.plot(outcome.reward, place, "o", color=colour, markersize=5)
    start = statistics.mean(outcome.before for outcome in outcomes if not outcome.problem)
    accuracy.axvline(start, color="#888888", linewidth=0.8, linestyle=":")
    accuracy.annotate("before", (start, -0.6), textcoords="offset points", xytext=(4, 0), color="#888888", fontsize=9)
    for period in periods:
        accuracy.plot([], [], "o-", color=colours[period], label=f"k = {period}")
    accuracy.set_yticks(range(len(objectives)), objectives)
    accuracy.set(xlabel="held-out accuracy, greedy (95 % interval)", xlim=(0, 1), ylim=(len(objectives) - 0.5, -0.8))
    reward.set(xlabel="reward of arriving completions,\nlast quarter of the steps", xlim=(0, 1))
    accuracy.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(periods))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()

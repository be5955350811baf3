"""Runs of the red-team task with different settings, within one budget: what their comparisons have in common.

RESULTS keeps a JSON file for each finished run, its run directory and all attacks that it generated, so that a command
can be stopped and called again. The last policy of each run is evaluated apart from it, so that no
evaluation takes a searcher's time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.driver import FinishedRun, run_recipe
from benchmarks.redteam_recording import KIND, RecordedAttack, count_recorded, read_recorded, recording_environment
from benchmarks.redteam_report import Metrics, last_and_start, markdown
from tbactl.cli.child import run_child
from tbactl.cli.frontier import Planned, evaluated_points, planned_evaluations
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.layout import ProcessConfig, RunLayout
from tbactl.config.run_record import read_run_record
from tbactl.dashboard.tail import JsonlTail
from tbactl.errors import TbactlError

RECIPE = "redteam"
PROGRESS_S = 60.0
# Of a budget that is not of steps: the run is stopped before.
NO_LAST_STEP = 1_000_000
SHARED = (
    f"task.kind={KIND}",
    "evaluation.num_prompts=0",
    "checkpoint.period=0",
    "logging.tensorboard=false",
    # A stopped run writes its checkpoint within this time.
    "supervision.stop_grace_s=120.0",
)


@dataclass(frozen=True, slots=True)
class Budget:
    """When a run ends: after so many optimizer steps, seconds of training, or attacks generated."""

    kind: Literal["steps", "seconds", "attacks"]
    amount: float

    def overrides(self) -> tuple[str, ...]:
        """The part that is a setting."""
        return (f"trainer.max_steps={int(self.amount) if self.kind == 'steps' else NO_LAST_STEP}",)

    def is_spent(self, *, num_attacks: int, training_s: float) -> bool:
        """Whether to stop a run that would go on."""
        return {"steps": False, "seconds": training_s >= self.amount, "attacks": num_attacks >= self.amount}[self.kind]

    def __str__(self) -> str:
        return {
            "steps": f"{self.amount:g} optimizer steps",
            "seconds": f"{self.amount:g} seconds of training",
            "attacks": f"{self.amount:g} attacks generated",
        }[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    group: str
    """What is compared; runs of one group differ in their seed."""
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.group}-seed{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. `problem` is set, and the numbers mean nothing, when it failed."""

    group: str
    seed: int
    overrides: tuple[str, ...]
    """All settings on top of the recipe's, to tell whether a kept result is of the same run."""
    profile: str = ""
    problem: str = ""
    run: str = ""
    """The run directory, relative to RESULTS."""
    training_s: float = float("nan")
    steps: int = 0
    attacks: int = 0
    """Generated and scored."""
    num_processes: int = 0
    """Searchers and trainer ranks."""
    searcher_cores: int = 0
    """Of each searcher, its victim included; 0: it is not bound to any."""

    @property
    def name(self) -> str:
        return f"{self.group}-seed{self.seed}"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all comparisons have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="directory of results, made if missing")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--steps", type=int, help="optimizer steps of each run (default 100)")
    budget.add_argument("--seconds", type=float, help="instead: seconds of training of each run")
    budget.add_argument("--attacks", type=int, help="instead: attacks generated in each run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--evaluated", type=int, default=128, help="attacks sampled in each evaluation (default 128)")
    parser.add_argument("--profile", choices=("cpu", "gpu"), help="of the recipe; the default fits the hardware found")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="as of tbactl run, for all"
    )
    return parser


def budget_of(arguments: argparse.Namespace) -> Budget:
    """The budget that was asked for."""
    if arguments.seconds is not None:
        return Budget("seconds", arguments.seconds)
    if arguments.attacks is not None:
        return Budget("attacks", arguments.attacks)
    return Budget("steps", 100 if arguments.steps is None else arguments.steps)


def measure(
    cells: Sequence[Cell], *, results: Path, budget: Budget, profile: str | None, overrides: Sequence[str]
) -> Iterator[Outcome]:
    """The outcome of every cell, from its file or from a run now."""
    results.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells, start=1):
        settings = (*SHARED, *budget.overrides(), *cell.overrides, f"seed={cell.seed}", f"name={cell.name}", *overrides)
        identity = (*settings, f"budget: {budget}", f"profile: {profile or 'by hardware'}")
        file = results / f"{cell.name}.json"
        label = f"[{number}/{len(cells)}] {cell.name}"
        if file.exists():
            outcome = _kept(file)
            if outcome.overrides != identity:
                changed = ", ".join(sorted(set(outcome.overrides) ^ set(identity)))
                sys.exit(f"{file} holds a run with other settings ({changed}): choose another directory.")
        else:
            print(f"{label} ...", flush=True)
            finished = _run(cell, results=results, budget=budget, profile=profile, overrides=settings)
            outcome = _outcome(cell, finished, results=results, overrides=identity)
            if not outcome.problem:  # else it is tried again by the next call
                file.write_text(json.dumps(asdict(outcome), indent=2), encoding="utf-8")
        summary = f"{outcome.attacks} attacks, {outcome.steps} steps in {outcome.training_s:.0f} s of training"
        print(f"{label}: {outcome.problem or summary}", flush=True)
        yield outcome


def recorded(outcome: Outcome, *, results: Path) -> list[RecordedAttack]:
    """All attacks that a run generated."""
    return read_recorded(results / "runs" / outcome.name / "attacks")


def evaluate(outcomes: Sequence[Outcome], *, results: Path, limit: int) -> tuple[dict[str, Metrics], Metrics]:
    """Metrics of the last policy of each run by its name, and of the policy that the first one started from.

    Evaluations are kept in RESULTS as those of `tbactl eval --frontier` are.
    """
    runs = {str((results / outcome.run).resolve()): outcome.name for outcome in outcomes if not outcome.problem}
    if not runs:
        sys.exit("no run has finished: there is nothing to compare.")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        planned = planned_evaluations(
            list(runs), given={"limit": limit}, overrides=["task.kind=redteam"], output=results.resolve()
        )
        points = evaluated_points(planned, evaluate=_evaluate, on_point=_say)
        return last_and_start(points, names={Path(run).name: name for run, name in runs.items()})
    except TbactlError as error:
        sys.exit(f"error: {error}")


def runs_table(outcomes: Sequence[Outcome], *, budget: Budget) -> str:
    """What each run has done."""
    rows = [
        (item.name, f"did not finish: {item.problem}", "", "")
        if item.problem
        else (item.name, f"{item.attacks}", f"{item.steps}", f"{item.training_s:.0f}")
        for item in outcomes
    ]
    return markdown(f"Runs of {budget} each", ("run", "attacks generated", "steps", "seconds of training"), rows)


def _evaluate(config: EvaluationConfig) -> None:
    assert config.output is not None
    config.output.mkdir(parents=True, exist_ok=True)
    file = config.output / "evaluation.json"
    file.write_text(config.model_dump_json(indent=2), encoding="utf-8")
    run_child("tbactl.evaluation", ["--config", str(file)], log=config.output / "evaluation.log")


def _say(item: Planned, is_done: bool) -> None:
    if not is_done:
        print(f"evaluating {item.run}, step {item.step} ...", flush=True)


def _kept(file: Path) -> Outcome:
    values = json.loads(file.read_text(encoding="utf-8"))
    return Outcome(**values | {"overrides": tuple(values["overrides"])})


def _run(cell: Cell, *, results: Path, budget: Budget, profile: str | None, overrides: Sequence[str]) -> FinishedRun:
    directory = results / "runs" / cell.name
    # What an interrupted run has left.
    shutil.rmtree(directory, ignore_errors=True)
    attacks = directory / "attacks"
    attacks.mkdir(parents=True)
    return run_recipe(
        RECIPE,
        profile=profile,
        overrides=[*overrides, f"runs_dir={directory.resolve()}"],
        environment=recording_environment(attacks, plugin=results / "plugin"),
        is_enough=_watch(directory, budget=budget),
    )


def _watch(directory: Path, *, budget: Budget) -> Callable[[], bool]:
    """Says whether a run's budget is spent; prints how far it is."""
    printed_s = time.monotonic()

    def is_spent() -> bool:
        nonlocal printed_s
        num_attacks = count_recorded(directory / "attacks")
        training_s = _training_s(directory)
        if time.monotonic() - printed_s > PROGRESS_S:
            printed_s = time.monotonic()
            print(f"    {training_s:.0f} s of training, {num_attacks} attacks", flush=True)
        return budget.is_spent(num_attacks=num_attacks, training_s=training_s)

    return is_spent


def _training_s(directory: Path) -> float:
    """Seconds since all processes of the run in it were ready; 0 before that."""
    for event in JsonlTail(RunLayout(directory / "latest").events).read_new():
        if event["kind"] == "run_state" and event["details"]["state"] == "RUNNING":
            return time.time() - datetime.fromisoformat(event["time"]).timestamp()
    return 0.0


def _outcome(cell: Cell, finished: FinishedRun, *, results: Path, overrides: tuple[str, ...]) -> Outcome:
    identity: dict[str, Any] = {"group": cell.group, "seed": cell.seed, "overrides": overrides}
    if finished.problem or finished.directory is None:
        return Outcome(**identity, problem=finished.problem or "no run directory")
    layout = RunLayout(finished.directory)
    record = read_run_record(layout.root)
    process = ProcessConfig.model_validate_json((layout.config / "searcher-0.json").read_bytes())
    return Outcome(
        **identity,
        profile=record.profile,
        run=str(layout.root.relative_to(results.resolve())),
        training_s=record.training_s or float("nan"),
        steps=record.steps or 0,
        attacks=count_recorded(results / "runs" / cell.name / "attacks"),
        num_processes=process.run.searchers.num_searchers + process.run.trainer.num_ranks,
        searcher_cores=len(process.cores),
    )

"""How near `tbactl plan` comes to real runs: forecast against seen, with 1, 2 and 3 searchers.

    python -m benchmarks.plan_accuracy RESULTS [--recipe fake|gsm8k] [--steps 40] [--searchers 1 2 3]

Costs are measured once, in the run with the first number of searchers; the others are forecast from these alone. What
is finished is kept in RESULTS and not done again. At the end a table is printed, and
RESULTS/plan_accuracy-RECIPE.json written.

`fake`: engine and learner sleep for their time, so cores do not matter and the model of searchers, rings, buffer and
trainer stands alone; the bounds of samples per insert make the trainer wait with one searcher, the searchers with
three.
`gsm8k`: the recipe itself, where processes share this machine's cores.

A forecast is taken for right within 15 % of what was seen; a share within 3 points, and staleness within a tenth of a
step, count as right as well, since 15 % of almost nothing is no measure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.driver import run_recipe
from tbactl import __version__
from tbactl.config.layout import RunLayout
from tbactl.config.run_record import read_run_config
from tbactl.planning.estimate import scenario_of
from tbactl.planning.hardware import Hardware
from tbactl.planning.measured import measured_hardware, steps_of_run
from tbactl.planning.simulation import simulate

TOLERANCE = 0.15
ENOUGH = {"trajectories_per_s": 0.0, "staleness_p50": 0.1, "trainer_idle": 0.03, "searcher_idle": 0.03}
FAKE_RECIPE = """
seed = 0
[task]
kind = "fake"
[policy]
path = "none"
[searchers]
engine = "fake"
engine_options = { step_seconds = 0.03, load_seconds = 0.05 }
num_completions = 4
max_prompt_tokens = 32
max_new_tokens = 60
max_concurrent_groups = 4
ring_capacity_bytes = 16384
[replay]
initial_trajectories = 32
min_samples_per_insert = 0.9
max_samples_per_insert = 1.0
[trainer]
kind = "fake"
options = { step_seconds = 0.9, learning_rate = 1e-9 }
prompts_per_step = 4
completions_per_prompt = 4
[sync]
period = 2
[checkpoint]
period = 0
"""


def main() -> None:
    """Run what is missing, forecast, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--recipe", choices=("fake", "gsm8k"), default="fake")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--searchers", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    recipe = _recipe(arguments.recipe, results=arguments.results)
    runs = {
        number: _run(
            recipe,
            directory=arguments.results / f"{arguments.recipe}-{arguments.steps}-{number}",
            overrides=[
                *arguments.overrides,
                f"trainer.max_steps={arguments.steps}",
                f"searchers.num_searchers={number}",
            ],
        )
        for number in arguments.searchers
    }
    hardware = _hardware(runs[arguments.searchers[0]], is_fake=arguments.recipe == "fake")
    rows = [row for number, run in runs.items() for row in _rows(number, run=run, hardware=hardware)]
    _report(rows, hardware=hardware, file=arguments.results / f"plan_accuracy-{arguments.recipe}.json")


def _recipe(name: str, *, results: Path) -> str:
    if name != "fake":
        return name
    path = results / "fake.toml"
    path.write_text(FAKE_RECIPE, encoding="utf-8")
    return str(path)


def _run(recipe: str, *, directory: Path, overrides: list[str]) -> Path:
    """The run directory, of an earlier call where it is there."""
    if not directory.is_dir():
        print(f"running {directory.name} ...", flush=True)
        finished = run_recipe(recipe, overrides=[*overrides, f"runs_dir={directory}.partial"], profile="cpu")
        if finished.problem or finished.directory is None:
            sys.exit(f"{directory.name} failed: {finished.problem}")
        finished.directory.rename(directory)
        shutil.rmtree(f"{directory}.partial")
        print(f"  {finished.seconds:.0f} s", flush=True)
    return directory


def _hardware(run: Path, *, is_fake: bool) -> Hardware:
    hardware = measured_hardware(run)
    if not is_fake:
        return hardware
    # Who sleeps needs no core, and sleeps as long for one sequence as for many.
    machine = hardware.machine.model_copy(update={"cores": 0})
    costs = hardware.costs.model_copy(update={"fixed_share": 1.0})
    return hardware.model_copy(update={"machine": machine, "costs": costs})


def _rows(number: int, *, run: Path, hardware: Hardware) -> list[dict[str, Any]]:
    config = read_run_config(run)
    scenario = scenario_of(config, hardware=hardware, model=None, max_steps=config.trainer.max_steps, seed=0)
    forecast, seen = simulate(scenario), _seen(RunLayout(run))
    return [
        {"searchers": number, "quantity": name, "forecast": getattr(forecast, name), "seen": seen[name]}
        | _judged(getattr(forecast, name), seen=seen[name], enough=ENOUGH[name])
        for name in ENOUGH
    ]


def _judged(forecast: float, *, seen: float, enough: float) -> dict[str, Any]:
    difference = abs(forecast - seen)
    return {
        "error": (forecast - seen) / seen if seen else None,
        "is_right": difference <= max(TOLERANCE * seen, enough),
    }


def _seen(layout: RunLayout) -> dict[str, float]:
    """The same quantities as an `Outcome`, from a run's metrics."""
    steps = steps_of_run(layout)
    elapsed_s = steps[-1]["trainer/elapsed_s/value"]
    return {
        "trajectories_per_s": steps[-1]["intake/trajectories/total"] / elapsed_s,
        "staleness_p50": fmean(step["replay/staleness/p50"] for step in steps),
        "trainer_idle": sum(step["trainer/wait_s/sum"] for step in steps) / elapsed_s,
        "searcher_idle": _weighted(steps, "searcher/idle/mean"),
    }


def _weighted(steps: list[Mapping[str, float]], name: str) -> float:
    seconds = [step["trainer/step_s/sum"] for step in steps]
    return sum(step[name] * second for step, second in zip(steps, seconds, strict=True)) / sum(seconds)


def _report(rows: list[dict[str, Any]], *, hardware: Hardware, file: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"\ntbactl {__version__}, {cores} cores\n")
    print(f"| searchers | {'quantity':<18} | forecast |     seen |  error |     |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        error = "      " if row["error"] is None else f"{row['error']:+6.0%}"
        mark = "ok" if row["is_right"] else "off"
        print(
            f"| {row['searchers']:>9} | {row['quantity']:<18} | {row['forecast']:8.3f} | {row['seen']:8.3f} | {error} "
            f"| {mark:<3} |"
        )
    document = {"cores": cores, "version": __version__, "hardware": hardware.model_dump(mode="json"), "rows": rows}
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

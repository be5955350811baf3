"""A plan as a person and as a program want to read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tbactl.config.derived import searchers_here
from tbactl.planning.memory import BRIDGE_BYTES, GIB, Memory
from tbactl.planning.scenario import Scenario
from tbactl.planning.sweep import Plan, PlannedPoint

COLUMNS = (
    "searchers", "made/s", "trained/s", "new/s", "uses", "steps/s", "run", "idle trainer", "idle searchers",
    "staleness p50", "p95", "device hours",
)  # fmt: skip


def plan_document(plan: Plan, *, currency: str) -> dict[str, Any]:
    """Everything, for `--json`."""
    memory = plan.memory
    return {
        "best_num_searchers": plan.best,
        "searchers_are_elsewhere": not searchers_here(plan.scenario.run),
        "costs": dataclasses.asdict(plan.scenario.costs),
        "currency": currency,
        "points": [
            dataclasses.asdict(point.outcome)
            | {
                "num_devices": point.num_devices,
                "device_hours": point.device_hours,
                "price": point.price,
                "warnings": list(point.warnings),
            }
            for point in plan.points
        ],
        "memory_bytes": None if memory is None else dataclasses.asdict(memory),
    }


def point_rows(plan: Plan, *, currency: str) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table; marked is the best number (*), and each that does not fit (!)."""
    has_price = any(point.price for point in plan.points)
    columns: list[str] = [*COLUMNS, currency] if has_price else [*COLUMNS]
    return columns, [_row(point, best=plan.best, has_price=has_price) for point in plan.points]


def basis_lines(scenario: Scenario) -> Iterator[str]:
    """What the forecast rests on."""
    costs, run = scenario.costs, scenario.run
    yield (
        f"  searcher   {scenario.group_s:.3g} s a group of {run.searchers.num_completions} at full load "
        f"({1 / costs.generate_s:.3g} trajectories/s), weights loaded in {costs.load_s:.3g} s"
    )
    yield (
        f"  trainer    {scenario.step_s:.3g} s a step of {run.trainer.prompts_per_step} x "
        f"{run.trainer.completions_per_prompt} ({1 / costs.train_s * run.trainer.num_ranks:.3g} trajectories/s), "
        f"sync every {run.sync.period} in {costs.publish_s:.3g} s"
    )
    cores = f"{scenario.cores} cores shared by all processes" if scenario.cores else "a device for each process"
    if not searchers_here(run):
        cores = f"{scenario.cores} cores for the trainer" if scenario.cores else "a device for each trainer rank"
        cores += "; searchers are on other machines (Ray), as fast as measured there or given"
    yield f"  machine    {cores}"
    if costs.estimated:
        yield f"  rough      {', '.join(costs.estimated)}: estimated from peaks, right within a factor of two at best"


def memory_lines(memory: Memory, *, are_searchers_here: bool) -> Iterator[str]:
    """One line a kind of process."""
    for name, parts in (("trainer", memory.trainer), ("searcher", memory.searcher)):
        shown = ", ".join(f"{part} {size / GIB:.2f}" for part, size in parts.items())
        where = "" if are_searchers_here or name == "trainer" else " on its own machine"
        yield f"  {name:<10} {sum(parts.values()) / GIB:.2f} GiB{where}: {shown}"
    if not are_searchers_here:
        yield f"  bridge     {BRIDGE_BYTES / GIB:.2f} GiB, one for each searcher on this machine"
    yield f"  /dev/shm   {memory.shared / GIB:.2f} GiB"


def verdict(plan: Plan) -> str:
    """Which number of searchers, and why."""
    num_ranks = plan.scenario.run.trainer.num_ranks
    ratio = f"{plan.best} : {num_ranks}"
    fitting = [point.outcome.num_searchers for point in plan.points if not point.warnings]
    if not fitting:
        return f"best: {ratio} (searchers : trainer ranks), but no number that was looked at fits: see the warnings"
    if plan.best == plan.points[-1].outcome.num_searchers and len(plan.points) > 1:
        return f"best: {ratio} (searchers : trainer ranks), the most that was looked at; more may be better"
    if plan.best == fitting[-1]:
        return f"best: {ratio} (searchers : trainer ranks), the most that fits: see the warnings"
    return f"best: {ratio} (searchers : trainer ranks); more add less than 5 % of new trajectories trained on"


def _row(point: PlannedPoint, *, best: int, has_price: bool) -> list[str]:
    outcome = point.outcome
    mark = "!" if point.warnings else "*" if outcome.num_searchers == best else ""
    cells = [
        f"{outcome.num_searchers}{mark}",
        f"{outcome.trajectories_per_s:.3g}",
        f"{outcome.trained_per_s:.3g}",
        f"{outcome.new_per_s:.3g}",
        f"{outcome.samples_per_insert:.2f}",
        f"{outcome.steps_per_s:.3g}",
        _duration(outcome.run_s),
        f"{outcome.trainer_idle:.0%}",
        f"{outcome.searcher_idle:.0%}",
        f"{outcome.staleness_p50:.1f}",
        f"{outcome.staleness_p95:.1f}",
        f"{point.device_hours:.3g}",
    ]
    return [*cells, f"{point.price:.2f}"] if has_price else cells


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

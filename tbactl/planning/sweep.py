"""A plan: the same run with each number of searchers, what it costs, and which is best."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tbactl.config.derived import searchers_here
from tbactl.errors import ConfigError
from tbactl.planning.hardware import Hardware, MachineSection, ModelSection
from tbactl.planning.memory import Memory, memory_of, memory_warnings, shared_memory_warnings
from tbactl.planning.scenario import Scenario
from tbactl.planning.simulation import Outcome, simulate

# All numbers up to here, then steps of a quarter: curves are smooth.
DENSE = 8
GROWTH = 1.25
# The best number reaches this share of what the best of all do.
KNEE_SHARE = 0.95
MAX_SEARCHERS = 1024
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One number of searchers.

    Attributes:
        outcome: of the simulation.
        num_devices: ranks and searchers; 1, the machine, where there are no devices.
        device_hours: of the whole run.
        price: of these.
        warnings: what will not fit.
    """

    outcome: Outcome
    num_devices: int
    device_hours: float
    price: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All points, in rising order of searchers.

    Attributes:
        scenario: common to all.
        points: at least one.
        best: number of searchers at the knee: the fewest that reach 95 % of the highest `new_per_s`, of those that fit;
            of all where none does.
        memory: of the processes; None where the policy's shape is not known.
    """

    scenario: Scenario
    points: tuple[PlannedPoint, ...]
    best: int
    memory: Memory | None


def parse_counts(text: str) -> list[int]:
    """Numbers of searchers from `4`, `1,2,8` or `1..64`, in rising order; a long range is thinned out.

    Raises:
        ConfigError: it is none of these, or out of range.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:\.\.\s*(\d{1,6})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MAX_SEARCHERS:
            raise ConfigError(f"--searchers {text}: expected numbers from 1 to {MAX_SEARCHERS}, as 4, 1,2,8 or 1..64.")
        numbers.update(_thinned(first, last))
    return sorted(numbers)


def make_plan(
    scenario: Scenario,
    *,
    hardware: Hardware,
    model: ModelSection | None,
    counts: Sequence[int],
    on_point: Callable[[int], None] = lambda num_searchers: None,
) -> Plan:
    """Simulate each number of searchers.

    Args:
        scenario: with any number.
        hardware: prices and limits.
        model: for memory; None: nothing is said about it.
        counts: rising.
        on_point: told each number before it is simulated.
    """
    points = []
    for num_searchers in counts:
        on_point(num_searchers)
        points.append(_point(scenario.with_searchers(num_searchers), hardware=hardware, model=model))
    best = knee([point.outcome for point in points if not point.warnings] or [point.outcome for point in points])
    return Plan(
        scenario=scenario,
        points=tuple(points),
        best=best,
        memory=None
        if model is None
        else memory_of(scenario.with_searchers(best).run, model=model, has_devices=not hardware.machine.cores),
    )


def knee(outcomes: Sequence[Outcome]) -> int:
    """The fewest searchers whose rate of new trajectories trained on is near the highest."""
    highest = max(outcome.new_per_s for outcome in outcomes)
    return next(outcome.num_searchers for outcome in outcomes if outcome.new_per_s >= KNEE_SHARE * highest)


def _point(scenario: Scenario, *, hardware: Hardware, model: ModelSection | None) -> PlannedPoint:
    outcome = simulate(scenario)
    machine = hardware.machine
    num_needed = scenario.run.trainer.num_ranks + scenario.run.searchers.num_searchers
    num_devices = 1 if machine.cores else num_needed
    hours = num_devices * outcome.run_s / HOUR_S
    return PlannedPoint(
        outcome=outcome,
        num_devices=num_devices,
        device_hours=hours,
        price=hours * machine.price_per_hour,
        warnings=tuple(_warnings(scenario, machine=machine, model=model)),
    )


def _warnings(scenario: Scenario, *, machine: MachineSection, model: ModelSection | None) -> list[str]:
    run = scenario.run
    warnings = []
    num_needed = run.trainer.num_ranks + searchers_here(run)
    if machine.num_devices is not None and num_needed > machine.num_devices:
        warnings.append(f"{num_needed} processes share {machine.num_devices} devices, which the times do not include.")
    if model is not None:
        memory = memory_of(run, model=model, has_devices=not machine.cores)
        warnings += memory_warnings(
            run, memory=memory, limit_gib=machine.memory_gib, shares_one=machine.cores > 0
        ) + shared_memory_warnings(memory, limit_gib=machine.shared_memory_gib)
    return warnings


def _thinned(first: int, last: int) -> list[int]:
    numbers = [first]
    while numbers[-1] < last:
        number = numbers[-1]
        numbers.append(min(last, number + 1 if number < DENSE else max(number + 1, round(number * GROWTH))))
    return numbers

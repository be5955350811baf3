"""Accuracy over time or generated tokens, and when a level was reached: the arithmetic of `time_to_accuracy.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Axis = Literal["time_s", "generated_tokens"]

PEER = "trl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Weights that were evaluated."""

    step: int
    time_s: float
    """Of training until they were there."""
    generated_tokens: int
    """Of completions, until then."""
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A contestant's run of one seed. `problem` is set, and there are no points, when it failed."""

    contestant: str
    seed: int
    budget_s: float
    num_prompts: int
    difficulty: str = "easy"
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_up_s: float = float("nan")
    """From its command to the begin of training."""
    num_steps: int = 0
    points: Sequence[Point] = ()
    problem: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Where it was measured, as `measuring.machine` has it; empty: it does not say."""

    @property
    def terms(self) -> dict[str, Any]:
        """What two runs that are compared must share."""
        return {name: getattr(self, name) for name in ("budget_s", "num_prompts", "difficulty", "settings")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Outcome:
        """The reverse of `dataclasses.asdict`."""
        return cls(**{**document, "points": [Point(**point) for point in document["points"]]})


def first_crossing(points: Sequence[Point], *, level: float, axis: Axis) -> float | None:
    """Where a curve first reaches a level, on the straight line between two points; None: it never does.

    Args:
        points: in the order of time.
        level: accuracy in [0, 1].
        axis: what is asked for.
    """
    for before, point in zip((None, *points), points, strict=False):
        if point.accuracy < level:
            continue
        reached = float(getattr(point, axis))
        if before is None:
            return reached
        share = (level - before.accuracy) / (point.accuracy - before.accuracy)
        start = float(getattr(before, axis))
        return start + share * (reached - start)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What one contestant needed in each seed to a share of what TRL had gained at the end of its run of that seed."""

    contestant: str
    seeds: Sequence[int]
    levels: Sequence[float]
    needed: Sequence[float | None]
    """Seconds, or tokens; None: more than its run had."""


def reached(outcomes: Sequence[Outcome], *, axis: Axis, share: float = 1.0) -> dict[str, Reached]:
    """By contestant, over the seeds in which both it and TRL have finished.

    Args:
        outcomes: of any contestants and seeds.
        axis: in seconds, or in tokens.
        share: of TRL's gain, from its start to its end; 1: its last accuracy itself. That is as noisy as one evaluation
            is, and where TRL's curve is flat there, the time to it as well.
    """
    by_run = {(outcome.contestant, outcome.seed): outcome.points for outcome in outcomes if not outcome.problem}
    found = {}
    for contestant in dict.fromkeys(outcome.contestant for outcome in outcomes):
        seeds = [seed for name, seed in by_run if name == contestant and (PEER, seed) in by_run]
        levels = [_level(by_run[PEER, seed], share=share) for seed in seeds]
        needed = [
            first_crossing(by_run[contestant, seed], level=level, axis=axis)
            for seed, level in zip(seeds, levels, strict=True)
        ]
        if seeds:
            found[contestant] = Reached(contestant=contestant, seeds=seeds, levels=levels, needed=needed)
    return found


def ratios(above: Reached, below: Reached) -> list[float]:
    """How often one contestant's need holds another's, seed by seed.

    Infinite where only `below` has reached the level, 0 where only `above` has; seeds in which neither has, or one is
    missing, are left out.
    """
    pairs = [
        (above.needed[above.seeds.index(seed)], need)
        for seed, need in zip(below.seeds, below.needed, strict=True)
        if seed in above.seeds
    ]
    return [_ratio(one, other) for one, other in pairs if one is not None or other is not None]


def _ratio(above: float | None, below: float | None) -> float:
    if below is None:
        return 0.0
    return float("inf") if above is None or not below else above / below


def _level(points: Sequence[Point], *, share: float) -> float:
    first, last = points[0].accuracy, points[-1].accuracy
    return last if share == 1.0 else first + share * (last - first)


def median_and_range(values: Sequence[float | None]) -> tuple[float, float, float]:
    """Median, smallest, largest; a missing value is larger than all others."""
    numbers = [float("inf") if value is None else value for value in values]
    return statistics.median(numbers), min(numbers), max(numbers)


def median_curve(curves: Sequence[Sequence[Point]], *, axis: Axis) -> list[tuple[float, float]]:
    """Median accuracy of several curves, at every place where one of them has a point, as far as all of them go."""
    lines = [([float(getattr(p, axis)) for p in points], [p.accuracy for p in points]) for points in curves]
    end = min(places[-1] for places, _ in lines)
    common = sorted({place for places, _ in lines for place in places if place <= end})
    return [
        (place, statistics.median(float(np.interp(place, places, values)) for places, values in lines))
        for place in common
    ]

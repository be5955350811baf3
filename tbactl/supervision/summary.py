"""What a run came to: printed at its end, and kept as summary.json for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord, read_run_record
from tbactl.config.sections import RunConfig
from tbactl.dashboard.tail import JsonlTail
from tbactl.supervision.atomic import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """The task's first metric at one policy version, and what that version had cost."""

    metric: str
    value: float
    interval: tuple[float, float] | None
    num_prompts: int
    policy_version: int
    completions: int
    training_s: float
    """Until the version existed, from the moment all processes were ready."""
    elapsed_s: float
    """Until the version existed, from the supervisor's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run, or a part of it, has taken."""

    duration_s: float = 0.0
    """From the supervisor's start to its end."""
    training_s: float = 0.0
    completions: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            duration_s=self.duration_s + other.duration_s,
            training_s=self.training_s + other.training_s,
            completions=self.completions + other.completions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of a run. `target_reached` is the first evaluation at or above `evaluation.target`."""

    run_directory: str
    record: RunRecord
    cost: Cost
    """Of all attempts together."""
    before: EvaluationPoint | None
    after: EvaluationPoint | None
    target: float | None
    target_reached: EvaluationPoint | None
    is_final_missed: bool
    """Whether the last policy's evaluation failed or took too long; then there is no `after`."""

    def to_json(self) -> str:
        """As a JSON document."""
        values = {
            "run_directory": self.run_directory,
            **self.record.model_dump(mode="json", include={"name", "recipe", "outcome", "attempt", "steps"}),
            **asdict(self.cost),
            "before": self.before and asdict(self.before),
            "after": self.after and asdict(self.after),
            "target": self.target,
            "target_reached": self.target_reached and asdict(self.target_reached),
        }
        return json.dumps(values, indent=2) + "\n"


def print_summary(layout: RunLayout, *, config: RunConfig, show: Callable[[str], object] = print) -> None:
    """Write summary.json and print the same for people.

    Args:
        layout: of the run.
        config: of the run.
        show: prints a line.
    """
    summary = summarise(layout, config=config)
    write_text(layout.summary, summary.to_json())
    for line in summary_lines(summary):
        show(line)


def summarise(layout: RunLayout, *, config: RunConfig) -> Summary:
    """Gather the numbers from run.json and events.jsonl, all attempts included."""
    record = read_run_record(layout.root)
    history = _History()
    for event in JsonlTail(layout.events).read_new():
        history.read(str(event.get("kind")), event.get("details") or {})
    points = sorted(history.points, key=lambda point: point.policy_version)
    is_final_missed = record.steps in history.missed
    target = config.evaluation.target
    return Summary(
        run_directory=str(_shown(layout.root)),
        record=record,
        cost=history.earlier + _cost(record.model_dump()),
        before=points[0] if points else None,
        after=points[-1] if len(points) > 1 and not is_final_missed else None,
        target=target,
        target_reached=next((point for point in points if target is not None and point.value >= target), None),
        is_final_missed=is_final_missed,
    )


class _History:
    """Evaluations and costs of a run over all its attempts, from its events in their order.

    An attempt whose supervisor was killed left no `run_ended`: its evaluations count, its cost does not.
    """

    def __init__(self) -> None:
        self.earlier = Cost()  # of the attempts before the last one
        self.points: list[EvaluationPoint] = []
        self.missed: set[int] = set()
        self._last = Cost()

    def read(self, kind: str, details: dict[str, Any]) -> None:
        match kind:
            case "run_started":
                self.earlier, self._last, self.missed = self.earlier + self._last, Cost(), set()
            case "run_state" if "policy_version" in details:
                # Versions after the checkpoint that was resumed from belong to work that is undone.
                self.points = [point for point in self.points if point.policy_version <= details["policy_version"]]
            case "evaluation" if (point := _point(details, earlier=self.earlier)) is not None:
                self.points.append(point)
            case "evaluation_missed":
                self.missed.add(int(details["policy_version"]))
            case "run_ended":
                self._last = _cost(details)


def _cost(facts: Mapping[str, Any]) -> Cost:
    return Cost(
        duration_s=float(facts.get("duration_s") or 0.0),
        training_s=float(facts.get("training_s") or 0.0),
        completions=int(facts.get("completions") or 0),
    )


def summary_lines(summary: Summary) -> Iterator[str]:
    """The summary for people, one fact a line."""
    record, cost = summary.record, summary.cost
    attempts = f" (attempt {record.attempt}; times and completions are of all attempts)" if record.attempt > 1 else ""
    yield f"run        {summary.run_directory}: {record.outcome}{attempts}"
    yield (
        f"time       {cost.duration_s:.1f} s from start to end, of which {cost.training_s:.1f} s were training (from "
        f"the moment all processes were ready to the last step)"
    )
    yield f"work       {record.steps or 0:,} optimizer steps, {cost.completions:,} completions generated"
    if summary.before is not None:
        label = "before" if summary.before.policy_version == 0 else "evaluated"
        yield f"{label:<11}{_shown_point(summary.before)}"
    if summary.before is not None and summary.after is not None:
        gain = 100 * (summary.after.value - summary.before.value)
        yield f"after      {_shown_point(summary.after)}, {gain:+.1f} points"
    if summary.is_final_missed:
        yield f"after      not measured: the evaluation of policy version {record.steps} failed or took too long"
    if summary.target is not None and summary.before is not None:
        yield f"target     {_shown_target(summary)}"


def _shown_point(point: EvaluationPoint) -> str:
    interval = f" [{point.interval[0]:.3f}, {point.interval[1]:.3f}]" if point.interval else ""
    return (
        f"{point.metric} {point.value:.3f}{interval} (policy version {point.policy_version}, n = {point.num_prompts})"
    )


def _shown_target(summary: Summary) -> str:
    point = summary.target_reached
    if point is None:
        return f"{summary.target:g} was not reached"
    return (
        f"{summary.target:g} reached at step {point.policy_version}: {point.completions:,} completions, "
        f"{point.training_s:.1f} s of training, {point.elapsed_s:.1f} s since the start"
    )


def _point(details: Mapping[str, Any], *, earlier: Cost) -> EvaluationPoint | None:
    metrics = details.get("metrics") or {}
    if not metrics:
        return None
    metric = next(iter(metrics))
    interval = (details.get("intervals") or {}).get(metric)
    return EvaluationPoint(
        metric=metric,
        value=float(metrics[metric]),
        interval=(float(interval[0]), float(interval[1])) if interval else None,
        num_prompts=int(details.get("num_prompts", 0)),
        policy_version=int(details["policy_version"]),
        completions=earlier.completions + int(details["completions"]),
        training_s=earlier.training_s + float(details["training_s"]),
        elapsed_s=earlier.duration_s + float(details["elapsed_s_at_version"]),
    )


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

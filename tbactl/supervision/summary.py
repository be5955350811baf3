"""What a run came to: printed at its end, and kept as summary.json for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
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
class Summary:
    """The numbers of a run. `target_reached` is the first evaluation at or above `evaluation.target`."""

    run_directory: str
    record: RunRecord
    before: EvaluationPoint | None
    after: EvaluationPoint | None
    target: float | None
    target_reached: EvaluationPoint | None
    evaluation_missed: bool

    def to_json(self) -> str:
        """As a JSON document."""
        values = {
            "run_directory": self.run_directory,
            **self.record.model_dump(
                mode="json", include={"name", "recipe", "outcome", "steps", "completions", "duration_s", "training_s"}
            ),
            "before": self.before and asdict(self.before),
            "after": self.after and asdict(self.after),
            "target": self.target,
            "target_reached": self.target_reached and asdict(self.target_reached),
        }
        return json.dumps(values, indent=2) + "\n"


def print_summary(layout: RunLayout, *, config: RunConfig) -> None:
    """Write summary.json and print the same for people."""
    summary = summarise(layout, config=config)
    write_text(layout.summary, summary.to_json())
    with suppress(BrokenPipeError):
        for line in summary_lines(summary):
            print(line, flush=True)


def summarise(layout: RunLayout, *, config: RunConfig) -> Summary:
    """Gather the numbers from run.json and events.jsonl, all attempts included."""
    events = JsonlTail(layout.events).read_new()
    points = [point for event in events if event.get("kind") == "evaluation" and (point := _point(event["details"]))]
    points.sort(key=lambda point: point.policy_version)
    target = config.evaluation.target
    reached = next((point for point in points if target is not None and point.value >= target), None)
    return Summary(
        run_directory=str(_shown(layout.root)),
        record=read_run_record(layout.root),
        before=points[0] if points else None,
        after=points[-1] if len(points) > 1 else None,
        target=target,
        target_reached=reached,
        evaluation_missed=any(event.get("kind") == "evaluation_missed" for event in events),
    )


def summary_lines(summary: Summary) -> Iterator[str]:
    """The summary for people, one fact a line."""
    record = summary.record
    duration_s, training_s = record.duration_s or 0.0, record.training_s or 0.0
    yield f"run        {summary.run_directory}: {record.outcome}"
    yield (
        f"time       {duration_s:.1f} s from start to end, of which {training_s:.1f} s were training (from the moment "
        f"all processes were ready to the last step)"
    )
    yield f"work       {record.steps or 0:,} optimizer steps, {record.completions or 0:,} completions generated"
    if summary.before is not None:
        label = "before" if summary.after or summary.before.policy_version == 0 else "evaluated"
        yield f"{label:<11}{_shown_point(summary.before)}"
    if summary.before is not None and summary.after is not None:
        gain = 100 * (summary.after.value - summary.before.value)
        yield f"after      {_shown_point(summary.after)}, {gain:+.1f} points"
    if summary.evaluation_missed:
        yield "           the final policy was not evaluated within evaluation.timeout_s"
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


def _point(details: dict[str, Any]) -> EvaluationPoint | None:
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
        completions=int(details["completions"]),
        training_s=float(details["training_s"]),
        elapsed_s=float(details["elapsed_s_at_version"]),
    )


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

"""Everything a view shows, as plain values: from the control page while a run lives, from its files always."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord
from tbactl.config.sections import RunConfig
from tbactl.dashboard.describe import ShownEvent, describe_event
from tbactl.dashboard.metric_names import COMPLETION_TOKENS, REWARD
from tbactl.dashboard.plots import Point
from tbactl.dashboard.tail import JsonlTail
from tbactl.ipc.control_page import ControlPage, RunState

NUM_EVENTS = 50
# Steps over which the pace is measured, for the time that is left.
PACE_STEPS = 10
# Steps that are remembered: a run may have millions.
MAX_STEPS = 4096


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """The control page at one moment."""

    now_ns: int
    supervisor: Mapping[str, float]
    trainers: Sequence[Mapping[str, float]]
    searchers: Sequence[Mapping[str, float]]

    def to_json(self) -> str:
        """As a JSON document."""
        document = {
            "now_ns": self.now_ns,
            "supervisor": self.supervisor,
            "trainers": self.trainers,
            "searchers": self.searchers,
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PageSnapshot:
        """The reverse of `to_json`."""
        document = json.loads(text)
        return cls(document["now_ns"], document["supervisor"], document["trainers"], document["searchers"])


def page_snapshot(page: ControlPage) -> PageSnapshot:
    """Read the whole page once."""
    return PageSnapshot(
        now_ns=time.monotonic_ns(),
        supervisor=page.supervisor.snapshot(),
        trainers=[page.trainer(rank).snapshot() for rank in range(page.num_trainer_ranks)],
        searchers=[page.searcher(index).snapshot() for index in range(page.num_searchers)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPoint:
    """The task's first metric on held-out prompts at one policy version."""

    metric: str
    policy_version: int
    value: float
    interval: tuple[float, float] | None
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A completion as it was sampled; not yet safe for a terminal."""

    step: int
    prompt: str
    completion: str
    reward: float
    policy_version: int
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardState:
    """One moment of a run."""

    config: RunConfig
    record: RunRecord
    page: PageSnapshot | None
    elapsed_s: float
    step: int
    eta_s: float | None
    rewards: Sequence[Point]
    completion_tokens: Sequence[Point]
    accuracy: Sequence[AccuracyPoint]
    metrics: Mapping[str, float]
    """Of the last optimizer step."""
    events: Sequence[ShownEvent] = field(default=())
    sample: Sample | None = None

    @property
    def status(self) -> str:
        """`RUNNING` and the like while it lives, then how it ended."""
        if self.record.outcome != "running":
            return self.record.outcome
        if self.page is None:
            return "killed"
        return RunState(int(self.page.supervisor["run_state"])).name

    @property
    def trainer(self) -> Mapping[str, float]:
        """Rank 0's words; empty when there is no page."""
        return self.page.trainers[0] if self.page else {}

    @property
    def searchers(self) -> Sequence[Mapping[str, float]]:
        """Each searcher's words; empty when there is no page."""
        return self.page.searchers if self.page else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What is remembered of an optimizer step."""

    time_s: float
    reward: float | None
    tokens: float | None


class Gatherer:
    """Follows a run's files and remembers what the views need of them."""

    def __init__(self, layout: RunLayout, *, config: RunConfig) -> None:
        self._config = config
        self._metrics_tail = JsonlTail(layout.metrics)
        self._events_tail = JsonlTail(layout.events)
        self._evaluations_tail = JsonlTail(layout.evaluations)
        self._trajectories_tail = JsonlTail(layout.trajectories)
        self._steps: dict[int, _Step] = {}
        self._metrics: Mapping[str, float] = {}  # of the last step
        self._evaluation_s = 0.0  # what the last one took
        self._accuracy: dict[int, AccuracyPoint] = {}
        self._events: deque[ShownEvent] = deque(maxlen=NUM_EVENTS)
        self._sample: Sample | None = None

    def gather(self, record: RunRecord, *, page: PageSnapshot | None, elapsed_s: float) -> DashboardState:
        """Read what is new and return the whole."""
        for line in self._metrics_tail.read_new():
            self._take_metrics(line)
        for line in self._evaluations_tail.read_new():
            self._take_evaluation(line)
        self._events.extend(describe_event(line) for line in self._events_tail.read_new())
        for line in self._trajectories_tail.read_new()[-1:]:
            self._sample = _sample(line)
        last = max(self._steps, default=0)
        step = int(page.trainers[0]["policy_version"]) if page else last
        return DashboardState(
            config=self._config,
            record=record,
            page=page,
            elapsed_s=elapsed_s,
            step=step,
            eta_s=self._eta_s(step),
            rewards=[(float(n), s.reward) for n, s in self._steps.items() if s.reward is not None],
            completion_tokens=[(float(n), s.tokens) for n, s in self._steps.items() if s.tokens is not None],
            accuracy=[self._accuracy[version] for version in sorted(self._accuracy)],
            metrics=self._metrics,
            events=list(self._events),
            sample=self._sample,
        )

    def _take_metrics(self, line: Mapping[str, Any]) -> None:
        step = int(line.get("step", 0))
        # A resumed run does the steps after its checkpoint again: what came after them is no longer true.
        while self._steps and next(reversed(self._steps)) >= step:
            self._steps.popitem()
        if len(self._steps) == MAX_STEPS:  # a curve of half as many points looks the same
            for known in list(self._steps)[: -PACE_STEPS - 1 : 2]:
                del self._steps[known]
        self._metrics = line.get("metrics") or {}
        self._steps[step] = _Step(
            time_s=float(line.get("time_s", 0.0)),
            reward=_float_or_none(self._metrics.get(REWARD)),
            tokens=_float_or_none(self._metrics.get(COMPLETION_TOKENS)),
        )

    def _take_evaluation(self, line: Mapping[str, Any]) -> None:
        metrics = line.get("metrics") or {}
        if not metrics:
            return
        self._evaluation_s = float(line.get("seconds") or 0.0)
        metric = next(iter(metrics))
        interval = (line.get("intervals") or {}).get(metric)
        version = int(line.get("policy_version", 0))
        self._accuracy[version] = AccuracyPoint(
            metric=metric,
            policy_version=version,
            value=float(metrics[metric]),
            interval=(float(interval[0]), float(interval[1])) if interval else None,
            num_prompts=int(line.get("num_prompts", 0)),
        )

    def _eta_s(self, step: int) -> float | None:
        """Seconds for what is left, at the pace of the last steps; None before the second step.

        The last evaluation follows the last step. Those before it cost time of their own in sync mode only, where
        nobody trains meanwhile.
        """
        recent = [(number, known.time_s) for number, known in list(self._steps.items())[-PACE_STEPS - 1 :]]
        if len(recent) < 2:
            return None
        paces = [max(0.0, b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(recent)]
        # In sync mode a step that holds an evaluation is an exception, and counted below.
        pace_s = median(paces) if self._config.mode == "sync" else sum(paces) / len(paces)
        steps_left = max(0, self._config.trainer.max_steps - step)
        return pace_s * steps_left + self._evaluation_s * self._evaluations_left(step)

    def _evaluations_left(self, step: int) -> int:
        section, max_steps = self._config.evaluation, self._config.trainer.max_steps
        if not section.num_prompts or max_steps in self._accuracy:
            return 0
        if self._config.mode == "async" or not section.period:
            return 1
        return -(-max_steps // section.period) - step // section.period


def _float_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def _sample(line: Mapping[str, Any]) -> Sample:
    return Sample(
        step=int(line.get("step", 0)),
        prompt=str(line.get("prompt", "")),
        completion=str(line.get("completion", "")),
        reward=float(line.get("reward", 0.0)),
        policy_version=int(line.get("version", 0)),
        finish_reason=str(line.get("finish_reason", "")),
    )

"""Turns what happens on the control page into events, and remembers when each policy version came to be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbactl.dashboard.tail import JsonlTail
from tbactl.ipc.control_page import AlarmKind, ControlPage, ProcessState
from tbactl.supervision.events import EventLog

MAX_MILESTONES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """When a policy version was first seen, and what it had cost by then."""

    policy_version: int
    elapsed_s: float
    """Since the supervisor's start."""
    training_s: float
    """Since all processes were ready."""
    completions: int


class ProgressRecorder:
    """Called at every turn of the supervisor's loop; reads the page, writes events."""

    def __init__(
        self, page: ControlPage, *, evaluations: Path, events: EventLog, num_completions: Callable[[], int]
    ) -> None:
        self._page = page
        self._events = events
        self._num_completions = num_completions
        self._evaluations = JsonlTail(evaluations, from_end=True)
        self._milestones: list[Milestone] = []
        # With a result, or known to be without one.
        self._settled = {int(line["policy_version"]) for line in JsonlTail(evaluations).read_new()}
        self._asked: list[int] = []
        self._training_since_s: float | None = None
        self._seen: dict[tuple[str, str], float] = {}

    def start_training(self) -> None:
        """All processes are ready: from here training time counts, and what an earlier attempt did beyond is undone."""
        self._training_since_s = self._events.elapsed_s
        version = self._page.trainer().get("policy_version")
        self._settled = {settled for settled in self._settled if settled <= version}
        self._events.record("run_state", state="RUNNING", policy_version=version)

    @property
    def training_s(self) -> float:
        """Seconds since `start_training`; 0 before."""
        return 0.0 if self._training_since_s is None else self._events.elapsed_s - self._training_since_s

    def observe(self) -> None:
        """Look once."""
        trainer = self._page.trainer().snapshot()
        self._observe_version(int(trainer["policy_version"]))
        for name, slot in self._children():
            is_ready = {"is_ready": float(slot["state"] in (ProcessState.READY, ProcessState.RUNNING))}
            if self._changed(name, "is_ready", is_ready):
                self._events.record("child_ready", process=name, pid=int(slot["pid"]))
        if step := self._changed("trainer-0", "checkpoint_step", trainer):
            self._events.record("checkpoint", process="trainer-0", step=int(step))
        if self._changed("trainer-0", "finished", trainer):
            self._events.record("training_finished", process="trainer-0", steps=int(trainer["policy_version"]))
        if alarms := self._changed("trainer-0", "num_alarms", trainer):
            self._events.record("alarm", process="trainer-0", num_alarms=int(alarms))
        for index in range(self._page.num_searchers):
            self._observe_searcher(f"searcher-{index}", self._page.searcher(index).snapshot())
        # Before the lines are read: a searcher writes the line of an evaluation first.
        num_done = self._page.searcher(0).get("evaluated_version_plus_1")
        for evaluation in self._evaluations.read_new():
            self._record_evaluation(evaluation)
        if asked := self._changed("trainer-0", "evaluate_version", trainer):
            self._asked.append(int(asked))
        self._observe_missed(num_done)

    def milestone(self, policy_version: int) -> Milestone | None:
        """When this version was first seen; the next later one where several steps passed between two looks."""
        index = bisect_left(self._milestones, policy_version, key=lambda milestone: milestone.policy_version)
        return self._milestones[index] if index < len(self._milestones) else None

    def _observe_version(self, version: int) -> None:
        if self._milestones and self._milestones[-1].policy_version == version:
            return
        if len(self._milestones) == MAX_MILESTONES:  # no evaluation is so far behind
            del self._milestones[: MAX_MILESTONES // 2]
        self._milestones.append(
            Milestone(
                policy_version=version,
                elapsed_s=self._events.elapsed_s,
                training_s=self.training_s,
                completions=self._num_completions(),
            )
        )

    def _children(self) -> Iterator[tuple[str, dict[str, float]]]:
        for rank in range(self._page.num_trainer_ranks):
            yield f"trainer-{rank}", self._page.trainer(rank).snapshot()
        for index in range(self._page.num_searchers):
            yield f"searcher-{index}", self._page.searcher(index).snapshot()

    def _observe_searcher(self, name: str, slot: dict[str, float]) -> None:
        if alarms := self._changed(name, "num_alarms", slot):
            kind = AlarmKind(int(slot["alarm_kind"]))
            details = {"logprob_difference": slot["f_logprob_difference"]} if kind == AlarmKind.WEIGHTS else {}
            self._events.record("alarm", process=name, num_alarms=int(alarms), about=kind.name.lower(), **details)

    def _changed(self, process: str, word: str, slot: dict[str, float]) -> float:
        """The word's value when it differs from the last look and is not zero, else 0."""
        value = slot[word]
        before = self._seen.get((process, word), 0.0)
        self._seen[process, word] = value
        return value if value != before else 0.0

    def _observe_missed(self, num_done: int) -> None:
        """Evaluations that were asked for and are over without a result."""
        while self._asked and self._asked[0] < num_done:
            version = self._asked.pop(0)
            self.record_missed(version, reason="it failed, or the next one was due before it began")

    def record_missed(self, policy_version: int, *, reason: str) -> None:
        """There will be no evaluation of this version. Said once, and not where there was one."""
        if policy_version in self._settled:
            return
        self._settled.add(policy_version)
        self._events.record("evaluation_missed", process="searcher-0", policy_version=policy_version, reason=reason)

    def _record_evaluation(self, evaluation: dict[str, Any]) -> None:
        version = int(evaluation.get("policy_version", 0))
        self._settled.add(version)
        milestone = self.milestone(version)
        self._events.record(
            "evaluation",
            process="searcher-0",
            policy_version=version,
            num_prompts=evaluation.get("num_prompts", 0),
            metrics=evaluation.get("metrics", {}),
            intervals=evaluation.get("intervals", {}),
            completions=milestone.completions if milestone else self._num_completions(),
            training_s=round(milestone.training_s if milestone else self.training_s, 3),
            elapsed_s_at_version=round(milestone.elapsed_s if milestone else self._events.elapsed_s, 3),
        )

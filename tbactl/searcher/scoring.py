"""Rewards, computed beside the engine: one background thread, one group at a time, in the order they were finished."""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tbactl.clock import Clock
from tbactl.errors import TaskError, TbactlError
from tbactl.protocols import Task
from tbactl.searcher.prompt_stream import StreamedPrompt
from tbactl.types import Completion, Prompt, Reward

logger = logging.getLogger(__name__)

PLACE_CALLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedGroup:
    """What the engine made of one prompt."""

    streamed: StreamedPrompt
    completions: tuple[Completion, ...]
    num_failed: int
    """Requests that failed in the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """The completions that have a reward."""

    streamed: StreamedPrompt
    scored: tuple[tuple[Completion, float], ...]
    num_failed: int
    """Completions dropped, by the engine or because scoring them failed."""
    failure: str = ""
    """Why the last one was dropped."""
    metrics: tuple[Mapping[str, float], ...] = ()
    """What the task says of each completion besides its reward; also of those that were dropped because of it."""


class Scorer:
    """A thread that owns the task's reward. Results come back in the order of `submit`.

    The thread is a daemon: a reward that never returns must not keep the process from ending.

    Args:
        task: its `score` is called from this thread only.
        clock: for the limit.
        limit_s: longest time for the reward of one group.
    """

    def __init__(self, task: Task, *, clock: Clock, limit_s: float) -> None:
        self._task = task
        self._clock = clock
        self._limit_s = limit_s
        self._todo: queue.SimpleQueue[GeneratedGroup | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[ScoredGroup | BaseException] = queue.SimpleQueue()
        self._submitted_s: deque[float] = deque()
        self._head_since_s = 0.0
        self._thread = threading.Thread(target=self._run, name="scorer", daemon=True)
        self._thread.start()

    @property
    def num_pending(self) -> int:
        """Groups submitted and not yet collected."""
        return len(self._submitted_s)

    def submit(self, group: GeneratedGroup) -> None:
        """Queue a group."""
        self._submitted_s.append(self._clock.monotonic_s())
        self._todo.put(group)

    def collect(self) -> list[ScoredGroup]:
        """Groups scored since the last call; never waits.

        Raises:
            TaskError: the task breaks its contract, or the reward of a group has not returned within the limit.
        """
        scored: list[ScoredGroup] = []
        while not self._done.empty():
            result = self._done.get()
            if isinstance(result, BaseException):
                raise result
            self._submitted_s.popleft()
            self._head_since_s = self._clock.monotonic_s()
            scored.append(result)
        self._check_limit()
        return scored

    def close(self) -> None:
        """End the thread after the group it is at; waits a moment only."""
        self._todo.put(None)
        self._thread.join(timeout=1.0)

    def _check_limit(self) -> None:
        if not self._submitted_s:
            return
        waiting_s = self._clock.monotonic_s() - max(self._submitted_s[0], self._head_since_s)
        if waiting_s > self._limit_s:
            raise TaskError(
                f"task '{self._task.name}': the reward of one group has not returned for {waiting_s:.0f} s (limit "
                f"{self._limit_s:g} s, supervision.progress_timeout_s); a reward must limit its own time. It is at "
                f"{self._place()}."
            )

    def _place(self) -> str:
        """Where the thread is now, innermost call first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = traceback.extract_stack(frame)[: -PLACE_CALLS - 1 : -1] if frame else []
        return ", called from ".join(f"{c.name} ({c.filename}:{c.lineno})" for c in calls) or "its end"

    def _run(self) -> None:
        while (group := self._todo.get()) is not None:
            try:
                self._done.put(score_group(self._task, group))
            except BaseException as error:
                self._done.put(error)
                return


def score_group(task: Task, group: GeneratedGroup) -> ScoredGroup:
    """Score the completions of a group; those whose scoring fails are left out and counted.

    Raises:
        TaskError: the task does not return one Reward for each completion.
    """
    prompt = group.streamed.prompt
    rewards = rewards_of(task, prompt, group.completions) if group.completions else []
    scored = []
    failure = "the engine failed" if group.num_failed else ""
    for completion, reward in zip(group.completions, rewards, strict=True):
        if reward.error is None:
            scored.append((completion, float(reward.value)))
        else:
            failure = reward.error
            logger.warning("reward failed task=%s prompt_id=%d reason=%.200s", task.name, prompt.prompt_id, failure)
    num_dropped = len(group.completions) - len(scored)
    return ScoredGroup(
        streamed=group.streamed,
        scored=tuple(scored),
        num_failed=group.num_failed + num_dropped,
        failure=failure,
        metrics=tuple(reward.metrics for reward in rewards),
    )


def rewards_of(task: Task, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
    """One for each completion; a completion whose scoring fails, or gives no finite number, has `error` set.

    Raises:
        TaskError: the task does not return one Reward for each completion.
    """
    try:
        return _checked(task, task.score(prompt, completions), count=len(completions))
    except TbactlError:
        raise
    except (Exception, SystemExit) as error:
        if len(completions) == 1:
            return [Reward(value=0.0, error=f"{type(error).__name__}: {error}")]
    # One completion made the reward raise: find out which, the others keep their rewards.
    return [reward for completion in completions for reward in rewards_of(task, prompt, [completion])]


def _checked(task: Task, rewards: object, *, count: int) -> list[Reward]:
    if not isinstance(rewards, list) or not all(isinstance(reward, Reward) for reward in rewards):
        raise TaskError(f"task '{task.name}': score() returned {type(rewards).__name__}; it must be a list of Reward.")
    if len(rewards) != count:
        raise TaskError(f"task '{task.name}': score() returned {len(rewards)} rewards for {count} completions.")
    return [_finite(reward) for reward in rewards]


def _finite(reward: Reward) -> Reward:
    """The reward, marked as failed where its value is not a finite number."""
    if reward.error is not None:
        return reward
    try:
        is_finite = not isinstance(reward.value, str) and math.isfinite(reward.value)
    except TypeError:
        is_finite = False
    return reward if is_finite else Reward(value=0.0, error=f"the reward is {reward.value!r}, not a finite number")

"""What a searcher shows of itself on the control page."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from tbactl.clock import Clock
from tbactl.ipc.control_page import NUM_REWARD_METRICS, SYNC_EDITS, AlarmKind, Slot
from tbactl.types import Completion
from tbactl.weight_sync.subscriber import SyncReport

_UPDATE_S = 0.2
_WINDOW_S = 10.0
_SMOOTHING = 0.02  # of moving means, per completion or group


class Status:
    """Counters at once, rates and means every 0.2 s.

    Args:
        slot: of this searcher.
        clock: for rates.
        reward_metrics: names of what rewards say besides their value that have a place on the page, in its order.
    """

    def __init__(self, slot: Slot, *, clock: Clock, reward_metrics: Sequence[str] = ()) -> None:
        self._slot = slot
        self._reward_metrics = reward_metrics[:NUM_REWARD_METRICS]
        self._reward_metrics_known = 0
        self._clock = clock
        self._updated_s = clock.monotonic_s()
        self._started_s = self._updated_s
        self._idle_s = 0.0  # since the last update
        self._idles: deque[tuple[float, float]] = deque()  # (when, idle between two updates)
        self._finished: deque[tuple[float, int]] = deque()  # (when, tokens) of the last completions
        self._means: dict[str, float] = {}
        self._turn_s = self._updated_s
        self._longest_turn_s = 0.0  # since the last update
        self._turns: deque[tuple[float, float]] = deque()  # (when, the longest between two updates)

    def begin(self) -> None:
        """The run has begun: loading, and waiting for the other processes until now, was no idling and no turn."""
        self._started_s = self._updated_s = self._turn_s = self._clock.monotonic_s()
        self._idle_s = self._longest_turn_s = 0.0
        self._idles.clear()
        self._turns.clear()

    def note_turn(self) -> None:
        """The loop has come round. What holds it up (the engine, new weights, the machine) shows as one long turn."""
        now = self._clock.monotonic_s()
        self._longest_turn_s = max(self._longest_turn_s, now - self._turn_s)
        self._turn_s = now

    def note_completion(self, completion: Completion) -> None:
        """A completion came out of the engine."""
        num_tokens = len(completion.token_ids)
        self._finished.append((self._clock.monotonic_s(), num_tokens))
        self._slot.add(num_completions=1, tokens_generated=num_tokens)
        self._note("f_completion_tokens", num_tokens)

    def note_reward(self, reward: float) -> None:
        """A completion was scored."""
        self._note("f_reward_mean", reward)

    def note_reward_metrics(self, metrics: Mapping[str, float]) -> None:
        """What the task says of a completion besides its reward."""
        for i, name in enumerate(self._reward_metrics):
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                self._note(f"f_reward_metric_{i}", value)
                self._reward_metrics_known |= 1 << i

    def note_idle(self, seconds: float) -> None:
        """The loop had nothing to do."""
        self._idle_s += seconds

    def note_sync(self, report: SyncReport) -> None:
        """New weights are in the engine."""
        self._slot.set_together(
            SYNC_EDITS,
            fingerprint=int(report.fingerprint[:16], 16),
            f_sync_seconds=report.seconds,
            f_logprob_difference=report.max_logprob_difference,
            loaded_version=report.version,
        )
        self._slot.add(num_syncs=1)
        if report.alarms:
            self._slot.set(alarm_kind=AlarmKind.WEIGHTS)
            self._slot.add(num_alarms=len(report.alarms))

    def update(self, *, num_active_requests: int, ring_fill: float) -> None:
        """Write rates and means, when they are due."""
        now = self._clock.monotonic_s()
        if now - self._updated_s < _UPDATE_S:
            return
        self._turns.append((now, self._longest_turn_s))
        self._longest_turn_s = 0.0
        self._idles.append((now, self._idle_s))
        for dated in (self._finished, self._turns, self._idles):
            while dated and dated[0][0] < now - _WINDOW_S:
                dated.popleft()
        window_s = min(_WINDOW_S, max(now - self._started_s, _UPDATE_S))
        self._idle_s, self._updated_s = 0.0, now
        self._slot.set(
            num_active_requests=num_active_requests,
            f_ring_fill=ring_fill,
            f_idle_fraction=min(1.0, sum(seconds for _, seconds in self._idles) / window_s),
            f_longest_turn_s=max(seconds for _, seconds in self._turns),
            f_tokens_per_s=sum(tokens for _, tokens in self._finished) / window_s,
            **self._means,
        )
        self._slot.set(reward_metrics_known=self._reward_metrics_known)  # after the means that it announces

    def _note(self, name: str, value: float) -> None:
        before = self._means.get(name, value)
        self._means[name] = before + _SMOOTHING * (value - before)

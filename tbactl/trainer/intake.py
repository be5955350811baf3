"""From the searchers' rings into the replay buffer.

Before this file on the way of a trajectory: the ring. After it: the replay buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.ipc.codec import CodecError, decode
from tbactl.ipc.ring import RingReader
from tbactl.replay.buffer import ReplayBuffer
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)

# So many records for each ring at a time: searchers as fast as the trainer reads must not hold it.
MAX_RECORDS = 1024


@dataclass(slots=True)
class _Fresh:
    """Sums over completions as they arrived, before the buffer drops repeated ones."""

    num_completions: int = 0
    num_duplicates: int = 0
    reward: float = 0.0
    num_tokens: int = 0

    def add(self, group: TrajectoryGroup, *, num_duplicates: int) -> None:
        self.num_duplicates += num_duplicates
        self.num_completions += len(group.trajectories)
        self.reward += sum(trajectory.reward for trajectory in group.trajectories)
        self.num_tokens += sum(len(trajectory.completion.token_ids) for trajectory in group.trajectories)

    def metrics(self) -> dict[str, float]:
        if not self.num_completions:
            return {}
        return {
            "intake/reward/mean": self.reward / self.num_completions,
            "intake/completion_tokens/mean": self.num_tokens / self.num_completions,
            "intake/duplicates/share": self.num_duplicates / self.num_completions,
        }


class Intake:
    """Reads all rings, a record of each in turn, and admits groups. What is damaged is counted, never fatal.

    Args:
        rings: one for each searcher.
        buffer: where groups go.
        state: whose counters and prompt cursors are kept up to date.
    """

    def __init__(self, rings: Sequence[RingReader], *, buffer: ReplayBuffer, state: TrainerState) -> None:
        self._rings = rings
        self._buffer = buffer
        self._state = state
        self._next_ring = 0
        self._num_undecodable = 0
        self._fresh = _Fresh()

    @classmethod
    def open(cls, paths: Sequence[Path], *, buffer: ReplayBuffer, state: TrainerState) -> Intake:
        """Open the rings for reading."""
        return cls([RingReader.open(path) for path in paths], buffer=buffer, state=state)

    def receive(self) -> list[TrajectoryGroup]:
        """Groups that have arrived and not been received before; they are not in the buffer yet."""
        return list(self._arrivals())

    def admit(self, group: TrajectoryGroup) -> None:
        """Put a group into the buffer and note that its prompt has arrived.

        Raises:
            TaskError: its prompt id stands for two prompts, or a reward is not finite.
        """
        report = self._buffer.insert(group)
        self._state.count(
            groups_received=1, trajectories_received=len(group.trajectories), completions_failed=group.num_failed
        )
        self._fresh.add(group, num_duplicates=report.num_duplicates)
        positions = self._state.stream_positions
        positions[group.searcher] = max(positions[group.searcher], group.stream_position)

    def drain(self, *, is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Receive and admit what has arrived; returns the number of groups.

        Args:
            is_wanted: asked before each group; the first no ends it. What is not read stays in its ring.
        """
        arrivals = self._arrivals()
        num_groups = 0
        while is_wanted() and (group := next(arrivals, None)) is not None:
            self.admit(group)
            num_groups += 1
        return num_groups

    def take_fresh_metrics(self) -> dict[str, float]:
        """What the searchers earn now: means over the completions admitted since the last call; empty without any."""
        fresh, self._fresh = self._fresh, _Fresh()
        return fresh.metrics()

    @property
    def num_damaged(self) -> int:
        """Records that could not be used, in this process's life and, for those the rings found, before."""
        return self._num_undecodable + sum(ring.num_corrupt + ring.num_lost for ring in self._rings)

    def close(self) -> None:
        """Unmap the rings."""
        for ring in self._rings:
            ring.close()

    def _arrivals(self) -> Iterator[TrajectoryGroup]:
        # In turn, and going on where it was left: else the last searchers' rings would stay full when few are wanted.
        num_empty = 0
        for _ in range(MAX_RECORDS * len(self._rings)):
            payload = self._rings[self._next_ring].try_read()
            self._next_ring = (self._next_ring + 1) % len(self._rings)
            if payload is not None:
                num_empty = 0
                group = self._decode(payload)
                if group is not None:
                    yield group
                continue
            num_empty += 1
            if num_empty == len(self._rings):
                return

    def _decode(self, payload: bytes) -> TrajectoryGroup | None:
        try:
            record = decode(payload)
        except CodecError as error:
            self._num_undecodable += 1
            logger.error("a record is left out: %s", error)
            return None
        if not isinstance(record, TrajectoryGroup) or record.searcher >= len(self._rings):
            self._num_undecodable += 1
            logger.error("a record is left out: %s is not a group of this run's searchers", type(record).__name__)
            return None
        return record

"""Trajectories and prompts as the replay buffer holds them: packed, because a million tuples of floats do not fit.

100 tokens take 1.2 kB here and about 7 kB as tuples. Token ids are little-endian int32, log-probs little-endian
float64, so that what is drawn equals what was inserted, bit by bit.
"""

from __future__ import annotations

import bisect
import dataclasses
import struct

import msgspec

from tbactl.types import Completion, FinishReason, Trajectory, TrajectoryGroup


def pack_token_ids(token_ids: tuple[int, ...]) -> bytes:
    """Token ids as int32; also the identity by which duplicates within a prompt are found."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


class StoredTrajectory(msgspec.Struct, array_like=True, gc=False):
    """One trajectory of the buffer. Snapshots hold all fields: whoever changes them changes the snapshot layout."""

    uid: int
    prompt_id: int
    token_ids: bytes
    logprobs: bytes
    text: str
    finish_reason: FinishReason
    first_version: int
    last_version: int
    reward: float
    insert_number: int
    """Running number of insertions into this buffer; a newer copy of the same tokens gets a new one."""
    num_draws: int = 0

    @property
    def version(self) -> int:
        """As `Completion.version`."""
        return self.first_version

    @property
    def age_key(self) -> tuple[int, int]:
        """Sorts oldest first: by version, then by insertion. Unique in a buffer."""
        return self.first_version, self.insert_number

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory, *, prompt_id: int, insert_number: int) -> StoredTrajectory:
        """Pack what arrived over the wire."""
        completion = trajectory.completion
        return cls(
            uid=trajectory.uid,
            prompt_id=prompt_id,
            token_ids=pack_token_ids(completion.token_ids),
            logprobs=struct.pack(f"<{len(completion.logprobs)}d", *completion.logprobs),
            text=completion.text,
            finish_reason=completion.finish_reason,
            first_version=completion.first_version,
            last_version=completion.last_version,
            reward=trajectory.reward,
            insert_number=insert_number,
        )

    def to_trajectory(self) -> Trajectory:
        """Unpack; equal to what was packed."""
        completion = Completion(
            token_ids=struct.unpack(f"<{len(self.token_ids) // 4}i", self.token_ids),
            logprobs=struct.unpack(f"<{len(self.logprobs) // 8}d", self.logprobs),
            text=self.text,
            finish_reason=self.finish_reason,
            first_version=self.first_version,
            last_version=self.last_version,
        )
        return Trajectory(uid=self.uid, completion=completion, reward=self.reward)


class StoredPrompt:
    """A prompt's trajectories, oldest first, no two with the same tokens.

    A trajectory is *fresh* when it was inserted after the prompt was last drawn; a prompt is fresh while it holds one.
    Freshness ends by being drawn (or by eviction), never because newer data arrives.
    """

    __slots__ = ("_by_tokens", "header", "last_draw", "num_fresh", "trajectories")

    def __init__(self, header: TrajectoryGroup, *, last_draw: int = -1) -> None:
        self.use_header_of(header)
        self.trajectories: list[StoredTrajectory] = []
        # Insert number at the last draw: what has a greater one is fresh.
        self.last_draw = last_draw
        self.num_fresh = 0
        self._by_tokens: dict[bytes, StoredTrajectory] = {}

    def use_header_of(self, group: TrajectoryGroup) -> None:
        """Describe drawn groups as `group`: where the prompt's newest data came from."""
        self.header = dataclasses.replace(group, trajectories=(), num_failed=0)

    @property
    def newest_version(self) -> int:
        return self.trajectories[-1].version

    def is_fresh(self, trajectory: StoredTrajectory) -> bool:
        return trajectory.insert_number > self.last_draw

    def find(self, token_ids: bytes) -> StoredTrajectory | None:
        return self._by_tokens.get(token_ids)

    def add(self, trajectory: StoredTrajectory) -> None:
        assert trajectory.token_ids not in self._by_tokens
        self._by_tokens[trajectory.token_ids] = trajectory
        bisect.insort(self.trajectories, trajectory, key=lambda stored: stored.age_key)
        self.num_fresh += self.is_fresh(trajectory)

    def remove(self, trajectory: StoredTrajectory) -> None:
        del self._by_tokens[trajectory.token_ids]
        index = bisect.bisect_left(self.trajectories, trajectory.age_key, key=lambda stored: stored.age_key)
        removed = self.trajectories.pop(index)
        assert removed is trajectory
        self.num_fresh -= self.is_fresh(trajectory)

    def mark_drawn(self, *, insert_number: int) -> None:
        """Nothing inserted up to and with `insert_number` is fresh any more."""
        self.last_draw = insert_number
        self.num_fresh = 0

    def group(self, chosen: list[StoredTrajectory]) -> TrajectoryGroup:
        """The chosen trajectories in wire form; the other fields are those of the group inserted last."""
        return dataclasses.replace(self.header, trajectories=tuple(stored.to_trajectory() for stored in chosen))

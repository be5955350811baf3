"""The central store of trajectories, by prompt. The trainer's intake inserts, a sampler draws, the checkpoint saves it.

Before this file on the way of a trajectory: the ring. After it: `samplers.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tbactl.errors import ConfigError, TaskError
from tbactl.replay.age_order import AgeOrder
from tbactl.replay.entries import StoredPrompt, StoredTrajectory
from tbactl.replay.prompt_orders import RecencyOrder, Urn
from tbactl.types import Trajectory, TrajectoryGroup

MIN_GROUP_SIZE = 2
"""Distinct trajectories a prompt needs to be drawn: the residual of one, or of copies of one, is zero."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InsertReport:
    """What one insertion did."""

    num_new: int
    num_duplicates: int
    """Trajectories whose tokens the prompt held already; the newer copy stays."""
    num_evicted: int
    """Trajectories, of whatever prompt, that left because the prompt or the buffer was full."""


@dataclasses.dataclass(slots=True, kw_only=True)
class BufferCounters:
    """Running totals over the life of a buffer, restarts included."""

    num_insertions: int = 0
    num_new: int = 0
    num_duplicates: int = 0
    num_evicted: int = 0
    num_expired: int = 0
    num_draws: int = 0

    def copy(self) -> BufferCounters:
        """The totals of now."""
        return dataclasses.replace(self)


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """One prompt's part of a batch, and what it was before."""

    prompt: StoredPrompt
    trajectories: list[StoredTrajectory]
    last_draw: int
    num_fresh: int


@dataclasses.dataclass(slots=True, kw_only=True)
class _Batch:
    """What undoing the draws of a batch takes."""

    urn: list[int]
    urn_num_left: int
    recency: list[tuple[bool, int, list[int]]]
    uses: list[_Use] = dataclasses.field(default_factory=list)


class ReplayBuffer:
    """Trajectories of all searchers under their prompts; bounded, without duplicates, oldest out first.

    *Oldest* is by policy version, then by insertion (`StoredTrajectory.age_key`), within a prompt and in the whole
    buffer alike. A prompt can be drawn while it holds two distinct trajectories, and disappears when it holds none.
    An insertion costs O(log capacity_per_prompt) a trajectory, whatever the size of the buffer. Not thread-safe.

    `prompts`, `urn`, `recency` and `counters` are for the samplers, statistics and snapshots of this package.

    Example:
        buffer = ReplayBuffer(capacity=100_000, capacity_per_prompt=100)
        buffer.insert(group)
        groups = sampler.select(buffer, num_prompts=16, num_per_prompt=8, policy_version=3, rng=rng)

    Args:
        capacity: Trajectories kept in all, >= 2.
        capacity_per_prompt: Trajectories kept for each prompt, >= 2.

    Raises:
        ConfigError: A capacity is smaller than a group.
    """

    def __init__(self, *, capacity: int, capacity_per_prompt: int) -> None:
        problems = [
            f"replay.{name} is {value}; a group needs at least {MIN_GROUP_SIZE} trajectories."
            for name, value in (("capacity", capacity), ("capacity_per_prompt", capacity_per_prompt))
            if value < MIN_GROUP_SIZE
        ]
        if problems:
            raise ConfigError(*problems)
        self.capacity = capacity
        self.capacity_per_prompt = capacity_per_prompt
        self.prompts: dict[int, StoredPrompt] = {}
        self.urn = Urn()
        self.recency = RecencyOrder()
        self.counters = BufferCounters()
        self._batch: _Batch | None = None
        self._ages = AgeOrder()
        self._rewards: Counter[float] = Counter()

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self._ages)

    @property
    def num_eligible_prompts(self) -> int:
        """Prompts with at least two distinct trajectories: those that can be drawn."""
        return len(self.urn)

    @property
    def versions(self) -> dict[int, int]:
        """Trajectories held of each policy version, oldest first."""
        return self._ages.versions

    @property
    def rewards(self) -> Mapping[float, int]:
        """How many trajectories held have each reward."""
        return self._rewards

    @property
    def samples_per_insert(self) -> float:
        """How often a trajectory was drawn so far, on average over all distinct ones that were inserted."""
        return self.counters.num_draws / max(self.counters.num_new, 1)

    def insert(self, group: TrajectoryGroup) -> InsertReport:
        """Add the trajectories of a group to its prompt, then evict what is too much, the oldest first.

        Of two trajectories of a prompt with the same tokens, the one of the newer version stays (of the same version:
        the one inserted later), with its log-probs, reward and uid; the number of draws is carried over.

        Raises:
            TaskError: The prompt id is known with other prompt tokens, or a reward is not finite.
        """
        self._check(group)
        self.commit_batch()
        prompt = self.prompts.get(group.prompt_id)
        if prompt is None:
            prompt = self.prompts[group.prompt_id] = StoredPrompt(group)
        else:
            prompt.use_header_of(group)
        before = self.counters.copy()
        for trajectory in group.trajectories:
            self._insert_one(prompt, trajectory)
        self._file(prompt)
        self._trim(prompt)
        self._trim_all()
        return InsertReport(
            num_new=self.counters.num_new - before.num_new,
            num_duplicates=self.counters.num_duplicates - before.num_duplicates,
            num_evicted=self.counters.num_evicted - before.num_evicted,
        )

    def _check(self, group: TrajectoryGroup) -> None:
        known = self.prompts.get(group.prompt_id)
        if known is not None and known.header.prompt_token_ids != group.prompt_token_ids:
            raise TaskError(
                f"prompt id {group.prompt_id} stands for two prompts: {known.header.prompt_text[:60]!r} and "
                f"{group.prompt_text[:60]!r}; a task must give each prompt its own id."
            )
        for trajectory in group.trajectories:
            if not math.isfinite(trajectory.reward):
                raise TaskError(f"trajectory {trajectory.uid} has reward {trajectory.reward}; it must be finite.")

    def _insert_one(self, prompt: StoredPrompt, trajectory: Trajectory) -> None:
        stored = StoredTrajectory.from_trajectory(
            trajectory, prompt_id=prompt.header.prompt_id, insert_number=self.counters.num_insertions
        )
        self.counters.num_insertions += 1
        known = prompt.find(stored.token_ids)
        if known is None:
            self.counters.num_new += 1
        else:
            self.counters.num_duplicates += 1
            if known.version > stored.version:
                return
            stored.num_draws = known.num_draws
            prompt.remove(known)
            self._forget(known)
        prompt.add(stored)
        self._remember(stored)

    def _remember(self, stored: StoredTrajectory) -> None:
        self._ages.add(stored)
        self._rewards[stored.reward] += 1

    def _forget(self, stored: StoredTrajectory) -> None:
        self._ages.remove(stored)
        self._rewards[stored.reward] -= 1
        if not self._rewards[stored.reward]:
            del self._rewards[stored.reward]

    def _trim(self, prompt: StoredPrompt) -> None:
        while len(prompt.trajectories) > self.capacity_per_prompt:
            self._drop(prompt.trajectories[0])
            self.counters.num_evicted += 1

    def _trim_all(self) -> None:
        while len(self) > self.capacity:
            self._drop(self._ages.oldest())
            self.counters.num_evicted += 1

    def _drop(self, stored: StoredTrajectory) -> None:
        prompt = self.prompts[stored.prompt_id]
        prompt.remove(stored)
        self._forget(stored)
        self._file(prompt)

    def _file(self, prompt: StoredPrompt) -> None:
        """Put a changed prompt where it belongs in the orders of drawing, or nowhere."""
        prompt_id = prompt.header.prompt_id
        if len(prompt.trajectories) >= MIN_GROUP_SIZE:
            self.recency.place(prompt_id, (prompt.num_fresh > 0, prompt.newest_version))
            if prompt_id not in self.urn:
                self.urn.add(prompt_id)
        else:
            self.recency.discard(prompt_id)
            if prompt_id in self.urn:
                self.urn.remove(prompt_id)
            if not prompt.trajectories:
                del self.prompts[prompt_id]

    def expire(self, *, oldest_version: int) -> int:
        """Remove all trajectories of versions before `oldest_version`; returns how many."""
        self.commit_batch()
        num_before = len(self)
        while self._ages and self._ages.oldest().version < oldest_version:
            self._drop(self._ages.oldest())
        num_expired = num_before - len(self)
        self.counters.num_expired += num_expired
        return num_expired

    def begin_batch(self) -> None:
        """The draws from here on are one batch, which `undo_batch` can take back. O(prompts)."""
        self._batch = _Batch(urn=list(self.urn.items), urn_num_left=self.urn.num_left, recency=self.recency.dump())

    def commit_batch(self) -> None:
        """The batch was trained on. An insertion, an expiry or another batch makes the draws before it final too."""
        self._batch = None

    def undo_batch(self) -> None:
        """Take the draws of an uncommitted batch back, exactly: the same generator draws it again."""
        if self._batch is None:
            return
        for use in reversed(self._batch.uses):
            use.prompt.last_draw, use.prompt.num_fresh = use.last_draw, use.num_fresh
            for stored in use.trajectories:
                stored.num_draws -= 1
            self.counters.num_draws -= len(use.trajectories)
        self.urn = Urn(self._batch.urn, num_left=self._batch.urn_num_left)
        self.recency = RecencyOrder.restore(self._batch.recency)
        self._batch = None

    def draw(self, prompt_id: int, chosen: Sequence[int]) -> TrajectoryGroup:
        """The group of the chosen trajectories (indexes, oldest first; may repeat), counted as used."""
        prompt = self.prompts[prompt_id]
        trajectories = [prompt.trajectories[index] for index in chosen]
        if self._batch is not None:
            self._batch.uses.append(_Use(prompt, trajectories, prompt.last_draw, prompt.num_fresh))
        for stored in trajectories:
            stored.num_draws += 1
        self.counters.num_draws += len(trajectories)
        prompt.mark_drawn(insert_number=self.counters.num_insertions - 1)
        self._file(prompt)
        return prompt.group(trajectories)

    def restore(
        self, prompts: Iterable[StoredPrompt], *, urn: Urn, recency: RecencyOrder, counters: BufferCounters
    ) -> int:
        """Fill an empty buffer from a snapshot, then evict what exceeds the capacities; returns how many that were."""
        assert not self.prompts
        self.prompts = {prompt.header.prompt_id: prompt for prompt in prompts}
        self.urn, self.recency, self.counters = urn, recency, counters
        held = [stored for prompt in self.prompts.values() for stored in prompt.trajectories]
        for stored in sorted(held, key=lambda stored: stored.insert_number):
            self._remember(stored)
        for prompt in list(self.prompts.values()):
            self._trim(prompt)
        self._trim_all()
        return len(held) - len(self)

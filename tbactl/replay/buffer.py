"""The central store of trajectories, by prompt. The trainer's intake inserts, a sampler draws, the checkpoint saves it.

Before this file on the way of a trajectory: the ring. After it: `samplers.py`.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tbactl.errors import ConfigError, TaskError
from tbactl.replay.columns import Columns
from tbactl.replay.counters import BufferCounters, InsertReport
from tbactl.replay.holdings import Eviction, Holdings
from tbactl.replay.near_duplicates import Likeness
from tbactl.replay.packing import head_of, pack_token_ids, pack_trajectory
from tbactl.replay.prompt_orders import RecencyOrder, Urn
from tbactl.replay.rivals import Rivals
from tbactl.replay.stored_prompt import StoredPrompt, StoredTrajectory
from tbactl.types import Trajectory, TrajectoryGroup

MIN_GROUP_SIZE = 2
"""Distinct trajectories a prompt needs to be drawn: the residual of one, or of copies of one, is zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """One prompt's part of a batch, and what the prompt was before."""

    prompt: StoredPrompt
    slots: Sequence[int]
    last_draw: int
    fresh: array[int]


class ReplayBuffer:
    """Trajectories of all searchers under their prompts; bounded, without duplicates.

    *Oldest* is by policy version, then by insertion (`Columns.age_key`), within a prompt and in the whole buffer alike.
    A prompt can be drawn while it holds two distinct trajectories, and disappears when it holds none. An insertion
    costs O(log capacity) a trajectory. Not thread-safe.

    `prompts`, `holdings`, `columns`, `urn`, `recency` and `counters` are for the samplers, statistics and snapshots of
    this package.

    Example:
        buffer = ReplayBuffer(capacity=100_000, capacity_per_prompt=100)
        buffer.insert(group)
        groups = sampler.select(buffer, num_prompts=16, num_per_prompt=8, policy_version=3, rng=rng)
        buffer.note_residuals({trajectory.uid: 0.3 for group in groups for trajectory in group.trajectories})
        buffer.commit_batch()

    Args:
        capacity: Trajectories kept in all, >= 2.
        capacity_per_prompt: Trajectories kept for each prompt, >= 2.
        eviction: What leaves first when a prompt, or the buffer, is full: the oldest, or the one with the lowest
            reward (of equal ones the oldest), which may be the one that just came.
        likeness: Tells which trajectories of a prompt are almost the same, of which the one with the highest reward
            stays, of equal ones the newer; None keeps them all.
        equal_rewards_last: Among fresh prompts, those whose fresh trajectories all have one reward come last.

    Raises:
        ConfigError: A capacity is smaller than a group.
    """

    def __init__(
        self,
        *,
        capacity: int,
        capacity_per_prompt: int,
        eviction: Eviction = "oldest",
        likeness: Likeness | None = None,
        equal_rewards_last: bool = False,
    ) -> None:
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
        self.holdings = Holdings(eviction)
        self._likeness = likeness
        self._equal_rewards_last = equal_rewards_last
        self._batch: list[_Use] | None = None
        self._last_drawn: list[Sequence[int]] = []

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self.holdings)

    @property
    def columns(self) -> Columns:
        """The fields of the trajectories held."""
        return self.holdings.columns

    @property
    def num_eligible_prompts(self) -> int:
        """Prompts with at least two distinct trajectories: those that can be drawn."""
        return len(self.urn)

    @property
    def versions(self) -> dict[int, int]:
        """Trajectories held of each policy version, oldest first."""
        return dict(sorted(self.holdings.versions.items()))

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Rewards of all trajectories held, in no order that means anything."""
        return self.columns.take("reward", self.columns.held())

    @property
    def samples_per_insert(self) -> float:
        """How often a trajectory was drawn so far, on average over all distinct ones that were inserted."""
        return self.counters.num_draws / max(self.counters.num_new, 1)

    def trajectories(self) -> Iterator[StoredTrajectory]:
        """Copies of all, by prompt, in each oldest first. The buffer must not change meanwhile."""
        for prompt in self.prompts.values():
            yield from (prompt.stored(slot) for slot in prompt.ages)

    def insert(self, group: TrajectoryGroup) -> InsertReport:
        """Add the trajectories of a group to its prompt, then evict what is too much.

        Of two trajectories of a prompt with the same tokens, the one of the newer version stays (of the same version:
        the one inserted later), with its log-probs, reward and uid. The number of draws and the residual are carried
        over: they tell of the tokens and the policy, whoever sampled them.

        Raises:
            TaskError: The prompt id is known with other prompt tokens, or a reward is not finite.
        """
        self._check(group)
        self.commit_batch()
        prompt = self.prompts.get(group.prompt_id)
        if prompt is None:
            prompt = StoredPrompt(group, self.columns, keeps_worths=self.holdings.keeps_worths)
            self.prompts[group.prompt_id] = prompt
        else:
            prompt.use_header_of(group)
        before = self.counters.copy()
        rivals = None
        if self._likeness is not None and group.trajectories:
            rivals = Rivals.find(self._likeness, group, prompt, columns=self.columns)
        for index, trajectory in enumerate(group.trajectories):
            slot = self._insert_one(prompt, trajectory, [] if rivals is None else rivals.of(index))
            self.counters.num_insertions += 1
            if rivals is not None:
                rivals.settle(slot)
        self._trim(prompt)
        self._file(prompt)
        self._trim_all()
        return InsertReport(
            num_new=self.counters.num_new - before.num_new,
            num_duplicates=self.counters.num_duplicates - before.num_duplicates,
            num_evicted=self.counters.num_evicted - before.num_evicted,
            num_near_duplicates=self.counters.num_near_duplicates - before.num_near_duplicates,
        )

    def _check(self, group: TrajectoryGroup) -> None:
        known = self.prompts.get(group.prompt_id)
        if known is not None and known.prompt_token_bytes != pack_token_ids(group.prompt_token_ids):
            raise TaskError(
                f"prompt id {group.prompt_id} stands for two prompts: {known.prompt_text[:60]!r} and "
                f"{group.prompt_text[:60]!r}; a task must give each prompt its own id."
            )
        for trajectory in group.trajectories:
            if not math.isfinite(trajectory.reward):
                raise TaskError(f"trajectory {trajectory.uid} has reward {trajectory.reward}; it must be finite.")

    def _insert_one(self, prompt: StoredPrompt, trajectory: Trajectory, rivals: Sequence[int]) -> int | None:
        """Store a trajectory, unless one that is held is better; returns its slot."""
        data = pack_trajectory(trajectory)
        known = self.holdings.find(prompt, data)
        if known is not None:
            self.counters.num_duplicates += 1
            if self.columns.first_version[known] > trajectory.completion.first_version:
                return None
            return self._replace(known, prompt, trajectory, data)
        self.counters.num_new += 1
        if any(self._is_better(rival, trajectory) for rival in rivals):
            self.counters.num_near_duplicates += 1
            return None
        self.counters.num_near_duplicates += len(rivals)
        for rival in rivals:
            self.holdings.remove(rival)
        return self.holdings.add(prompt, trajectory, data, insert_number=self.counters.num_insertions)

    def _is_better(self, rival: int, trajectory: Trajectory) -> bool:
        # Of equal rewards the newer one stays, as of equal tokens.
        worth = self.columns.reward[rival], self.columns.first_version[rival]
        return worth > (trajectory.reward, trajectory.completion.first_version)

    def _replace(self, known: int, prompt: StoredPrompt, trajectory: Trajectory, data: bytes) -> int:
        columns = self.columns
        num_draws, residual = columns.num_draws[known], columns.residual[known]
        self.holdings.remove(known)
        slot = self.holdings.add(prompt, trajectory, data, insert_number=self.counters.num_insertions)
        columns.num_draws[slot], columns.residual[slot] = num_draws, residual
        return slot

    def _trim(self, prompt: StoredPrompt) -> None:
        while len(prompt) > self.capacity_per_prompt:
            self.holdings.remove(prompt.next_to_leave())
            self.counters.num_evicted += 1

    def _trim_all(self) -> None:
        while len(self) > self.capacity:
            self._file(self.holdings.remove(self.holdings.next_to_leave()))
            self.counters.num_evicted += 1

    def _file(self, prompt: StoredPrompt) -> None:
        """Put a changed prompt where it belongs in the orders of drawing, or nowhere."""
        prompt_id = prompt.prompt_id
        if len(prompt) >= MIN_GROUP_SIZE:
            self.recency.place(prompt_id, (self._rank(prompt), prompt.newest_version))
            if prompt_id not in self.urn:
                self.urn.add(prompt_id)
        else:
            self.recency.discard(prompt_id)
            if prompt_id in self.urn:
                self.urn.remove(prompt_id)
            if not len(prompt):
                del self.prompts[prompt_id]

    def _rank(self, prompt: StoredPrompt) -> int:
        """As in `RecencyKey`."""
        if not prompt.num_fresh:
            return 0
        return 2 if self._equal_rewards_last and prompt.has_contrast else 1

    def expire(self, *, oldest_version: int) -> int:
        """Remove all trajectories of versions before `oldest_version`; returns how many."""
        self.commit_batch()
        num_before = len(self)
        while len(self) and self.columns.first_version[self.holdings.oldest()] < oldest_version:
            self._file(self.holdings.remove(self.holdings.oldest()))
        num_expired = num_before - len(self)
        self.counters.num_expired += num_expired
        return num_expired

    def begin_batch(self) -> None:
        """The draws from here on are one batch, which `undo_batch` can take back. O(1)."""
        self._batch = []
        self._last_drawn = []
        self.urn.begin()
        self.recency.begin()

    def commit_batch(self) -> None:
        """The batch was trained on. An insertion, an expiry or another batch makes the draws before it final too."""
        self._batch = None
        self.urn.end()
        self.recency.end()

    def undo_batch(self) -> None:
        """Take the draws of an uncommitted batch back, exactly: the same generator draws it again."""
        if self._batch is None:
            return
        for use in reversed(self._batch):
            use.prompt.last_draw, use.prompt.fresh = use.last_draw, use.fresh
            for slot in use.slots:
                self.columns.num_draws[slot] -= 1
            self.counters.num_draws -= len(use.slots)
        self.urn.undo()
        self.recency.undo()
        self._batch = None

    def draw(self, prompt_id: int, chosen: Sequence[int]) -> TrajectoryGroup:
        """The group of the chosen slots of a prompt, which may repeat, counted as used."""
        prompt = self.prompts[prompt_id]
        if self._batch is not None:
            self._batch.append(_Use(prompt, chosen, prompt.last_draw, prompt.fresh))
        num_draws = self.columns.num_draws
        for slot in chosen:
            num_draws[slot] += 1
        self._last_drawn.append(chosen)
        self.counters.num_draws += len(chosen)
        prompt.mark_drawn(insert_number=self.counters.num_insertions - 1)
        self._file(prompt)
        return prompt.group(chosen)

    def note_residuals(self, residuals: Mapping[int, float]) -> None:
        """Store VarGrad residuals of trajectories of the last batch, for draws by residual.

        What has left since, or was not in that batch, is passed over.

        Args:
            residuals: uid -> residual in reward units, finite.
        """
        columns = self.columns
        held = (slot for slots in self._last_drawn for slot in slots if columns.insert_number[slot] >= 0)
        slot_of = {head_of(columns.data[slot]).uid: slot for slot in held}
        for uid in residuals.keys() & slot_of.keys():
            slot = slot_of[uid]
            self.holdings.owner(slot).note_residual(slot, residuals[uid])

    def restore(self, *, urn: Urn, recency: RecencyOrder, counters: BufferCounters) -> int:
        """Go on from a snapshot, of which `columns` and `prompts` are filled; evict what exceeds the capacities.

        Returns:
            How many were evicted.
        """
        self.urn, self.recency, self.counters = urn, recency, counters
        self.holdings.restore(self.prompts.values())
        num_before = len(self)
        for prompt in list(self.prompts.values()):
            self._trim(prompt)
            self._file(prompt)
        self._trim_all()
        return num_before - len(self)

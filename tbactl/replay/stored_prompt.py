"""A prompt and its trajectories, as the buffer holds them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tbactl.replay.block_weights import BlockWeights
from tbactl.replay.columns import Columns
from tbactl.replay.packing import (
    head_of,
    pack_token_ids,
    token_bytes_of,
    unpack_token_ids,
    unpack_trajectories,
    unpack_trajectory,
)
from tbactl.replay.sorted_slots import SortedSlots
from tbactl.replay.weighting import Weighting, choose_weighted, with_best_for_unknown
from tbactl.types import Trajectory, TrajectoryGroup

MAX_PLAIN = 1024
"""A prompt with more trajectories than this is drawn from block by block instead of looking at all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectory:
    """A copy of what the buffer knows of a trajectory."""

    uid: int
    prompt_id: int
    data: bytes
    """All of the trajectory, packed."""
    first_version: int
    last_version: int
    reward: float
    residual: float | None
    """VarGrad residual when it was last trained on, in reward units; None: never trained on."""
    insert_number: int
    """Running number of insertions into this buffer; a newer copy of the same tokens gets a new one."""
    num_draws: int

    @property
    def version(self) -> int:
        """As `Completion.version`."""
        return self.first_version

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the completion."""
        return unpack_token_ids(token_bytes_of(self.data))

    def to_trajectory(self) -> Trajectory:
        """Unpack; equal to what was inserted."""
        return unpack_trajectory(self.data)


class StoredPrompt:
    """A prompt's trajectories, no two with the same tokens.

    A trajectory is *fresh* when it was inserted after the prompt was last drawn; a prompt is fresh while it holds one.
    Freshness ends by being drawn (or by eviction), never because newer data arrives.

    Attributes:
        prompt_id: unique in the task's split.
        prompt_text: as the searcher sent it.
        prompt_token_bytes: token ids as int32.
        ages: slots, oldest first.
        worths: slots, lowest reward first, where these are evicted; else None.
        fresh: slots of the fresh ones, in an order that depends on the history alone.
        last_draw: insert number at the last draw: what has a greater one is fresh.
    """

    __slots__ = (
        "_block_weights",
        "_columns",
        "_origin",
        "ages",
        "fresh",
        "last_draw",
        "prompt_id",
        "prompt_text",
        "prompt_token_bytes",
        "worths",
    )

    def __init__(self, header: TrajectoryGroup, columns: Columns, *, keeps_worths: bool) -> None:
        self._columns = columns
        self._block_weights: BlockWeights | None = None
        self.prompt_id = header.prompt_id
        self.prompt_text = header.prompt_text
        self.prompt_token_bytes = pack_token_ids(header.prompt_token_ids)
        self.use_header_of(header)
        self.ages = SortedSlots(columns.age_key)
        self.worths = SortedSlots(columns.worth_key) if keeps_worths else None
        self.fresh = array("i")
        self.last_draw = -1

    def use_header_of(self, group: TrajectoryGroup) -> None:
        """Describe drawn groups as `group`: where the prompt's newest data came from."""
        self._origin = group.searcher, group.sequence_number, group.stream_position

    @property
    def header(self) -> TrajectoryGroup:
        """The prompt in wire form, without trajectories."""
        return self._group(())

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return unpack_token_ids(self.prompt_token_bytes)

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self.ages)

    @property
    def newest_version(self) -> int:
        return self._columns.first_version[self.ages.last()]

    @property
    def num_fresh(self) -> int:
        return len(self.fresh)

    @property
    def has_contrast(self) -> bool:
        """Whether rewards of fresh ones differ; O(fresh)."""
        rewards = (self._columns.reward[slot] for slot in self.fresh)
        first = next(rewards, None)
        return any(reward != first for reward in rewards)

    @property
    def trajectories(self) -> list[StoredTrajectory]:
        """Copies of all, oldest first; O(trajectories)."""
        return [self.stored(slot) for slot in self.ages]

    @property
    def newest(self) -> StoredTrajectory:
        """The last of `trajectories`; O(1)."""
        return self.stored(self.ages.last())

    def stored(self, slot: int) -> StoredTrajectory:
        """A copy of one."""
        columns = self._columns
        residual = columns.residual[slot]
        head = head_of(columns.data[slot])
        return StoredTrajectory(
            uid=head.uid,
            prompt_id=self.prompt_id,
            data=columns.data[slot],
            first_version=head.first_version,
            last_version=head.last_version,
            reward=head.reward,
            residual=None if math.isnan(residual) else residual,
            insert_number=columns.insert_number[slot],
            num_draws=columns.num_draws[slot],
        )

    def restore(self, slots: range, *, block_sizes: Sequence[int], fresh: Sequence[int], last_draw: int) -> None:
        """Become what a snapshot says.

        Args:
            slots: where the trajectories are in the columns, oldest first.
            block_sizes: of `ages`.
            fresh: ranks of the fresh ones among `slots`.
            last_draw: as the attribute.
        """
        self.last_draw = last_draw
        self.ages = SortedSlots(self._columns.age_key, slots, block_sizes=block_sizes)
        if self.worths is not None:
            self.worths = SortedSlots(
                self._columns.worth_key, self._columns.by_worth(np.arange(slots.start, slots.stop))
            )
        self.fresh = array("i", (slots[rank] for rank in fresh))
        for position, slot in enumerate(self.fresh):
            self._columns.fresh_position[slot] = position
        for slot in slots:
            self._columns.owner[slot] = self

    def add(self, slot: int) -> None:
        """Take in a trajectory that was just inserted, so it is fresh."""
        self._columns.fresh_position[slot] = len(self.fresh)
        self.fresh.append(slot)
        self.ages.add(slot)
        if self.worths is not None:
            self.worths.add(slot)

    def remove(self, slot: int) -> None:
        """Let go of a trajectory; the columns still hold it."""
        if self.is_fresh(slot):
            position, last = self._columns.fresh_position[slot], self.fresh.pop()
            if last != slot:
                self.fresh[position] = last
                self._columns.fresh_position[last] = position
        self.ages.remove(slot)
        if self.worths is not None:
            self.worths.remove(slot)

    def next_to_leave(self) -> int:
        """Slot of the one to evict when there are too many."""
        return (self.ages if self.worths is None else self.worths).first()

    def is_fresh(self, slot: int) -> bool:
        return self._columns.insert_number[slot] > self.last_draw

    def mark_drawn(self, *, insert_number: int) -> None:
        """Nothing inserted up to and with `insert_number` is fresh any more."""
        self.last_draw = insert_number
        self.fresh = array("i")

    def note_residual(self, slot: int, residual: float) -> None:
        """Store what training found out about a trajectory."""
        self._columns.residual[slot] = residual
        if self._block_weights is not None:
            self._block_weights.block_changed(self.ages.find_block(slot))

    def choose_recent(self, num_chosen: int, rng: np.random.Generator) -> list[int]:
        """Slots drawn uniformly from the fresh ones; where these are fewer, the newest others fill up."""
        if len(self.fresh) > num_chosen:
            places = rng.choice(len(self.fresh), size=num_chosen, replace=False)
            return [self.fresh[place] for place in places.tolist()]
        candidates = list(self.fresh)
        others = (slot for slot in self.ages.newest_first() if not self.is_fresh(slot))
        candidates += [slot for _, slot in zip(range(num_chosen - len(candidates)), others, strict=False)]
        return _choose_evenly(candidates, num_chosen, rng)

    def choose_uniform(self, num_chosen: int, rng: np.random.Generator) -> list[int]:
        """Slots drawn uniformly from all."""
        if self._is_big(num_chosen):
            return self._weights_of_blocks().draw_uniform(num_chosen, rng)
        return _choose_evenly(self.ages.to_array().tolist(), num_chosen, rng)

    def choose_weighted(self, weighting: Weighting, num_chosen: int, rng: np.random.Generator) -> list[int]:
        """Slots drawn by weight from all."""
        if weighting.scale == 0.0:
            return self.choose_uniform(num_chosen, rng)
        if self._is_big(num_chosen):
            return self._weights_of_blocks().draw(weighting, num_chosen=num_chosen, rng=rng)
        slots = self.ages.to_array()
        scores = with_best_for_unknown(weighting.scores(self._columns, slots))
        chosen = choose_weighted(scores, scale=weighting.scale, num_chosen=num_chosen, rng=rng)
        return slots[chosen].tolist()

    def _is_big(self, num_chosen: int) -> bool:
        return len(self.ages) > max(MAX_PLAIN, num_chosen)

    def _weights_of_blocks(self) -> BlockWeights:
        if self._block_weights is None:
            self._block_weights = BlockWeights(self._columns, self.ages)
        return self._block_weights

    def group(self, chosen: Sequence[int]) -> TrajectoryGroup:
        """The chosen slots in wire form; the other fields are those of the group inserted last."""
        data = self._columns.data
        return self._group(unpack_trajectories([data[slot] for slot in chosen]))

    def _group(self, trajectories: tuple[Trajectory, ...]) -> TrajectoryGroup:
        searcher, sequence_number, stream_position = self._origin
        return TrajectoryGroup(
            prompt_id=self.prompt_id,
            prompt_text=self.prompt_text,
            prompt_token_ids=self.prompt_token_ids,
            trajectories=trajectories,
            searcher=searcher,
            sequence_number=sequence_number,
            stream_position=stream_position,
        )


def _choose_evenly(slots: Sequence[int], num_chosen: int, rng: np.random.Generator) -> list[int]:
    """Distinct ones uniformly; where there are fewer, each once and more with replacement."""
    if len(slots) < num_chosen:
        more = rng.integers(len(slots), size=num_chosen - len(slots))
        return [*slots, *(slots[index] for index in more.tolist())]
    return [slots[index] for index in rng.permutation(len(slots))[:num_chosen].tolist()]

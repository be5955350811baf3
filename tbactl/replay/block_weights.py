"""Weighted draws from a prompt of very many trajectories, in two stages: first among blocks, then within 160 of them.

What has to be looked at for a draw is one number of each block and the contents of K blocks; what has to be computed
again after an insertion, the sums of the blocks that changed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.columns import Columns, Slots
from tbactl.replay.sorted_slots import SortedSlots, concatenate
from tbactl.replay.weighting import Floats, Weighting, earliest, relative_weights, ringing_times

Indexes = NDArray[np.intp]


class BlockWeights:
    """Sums of weights of the blocks of a list, kept up to date as its observer.

    For each block: the best score; the sum of the weights relative to that best one, so that no sum over- or underflows
    whatever the scale; and how many have no score yet, as these follow the best of the whole list. A sum that is out
    of date is NaN.
    """

    def __init__(self, columns: Columns, slots: SortedSlots) -> None:
        self._columns = columns
        self._slots = slots
        self._weighting: Weighting | None = None
        num_blocks = len(slots.blocks)
        self._sizes = array("i", map(len, slots.blocks))
        self._best = array("d", bytes(8 * num_blocks))
        self._sums = array("d", [np.nan]) * num_blocks
        self._num_unknown = array("i", bytes(4 * num_blocks))
        slots.observer = self

    def block_added(self) -> None:
        """The first block, to sum up."""
        self._make_room(0)
        self.block_changed(0)

    def block_changed(self, index: int) -> None:
        """Sum it up again before the next draw."""
        self._sizes[index] = len(self._slots.blocks[index])
        self._sums[index] = np.nan

    def block_split(self, index: int) -> None:
        """Two blocks to sum up."""
        self._make_room(index)
        self.block_changed(index)
        self.block_changed(index + 1)

    def _make_room(self, index: int) -> None:
        self._sizes.insert(index, 0)
        self._best.insert(index, 0.0)
        self._sums.insert(index, np.nan)
        self._num_unknown.insert(index, 0)

    def block_removed(self, index: int) -> None:
        """Forget it."""
        for numbers in (self._sizes, self._best, self._sums, self._num_unknown):
            del numbers[index]

    def draw_uniform(self, num_chosen: int, rng: np.random.Generator) -> list[int]:
        """Distinct slots, uniformly."""
        ends = np.cumsum(np.frombuffer(self._sizes, dtype=np.int32), dtype=np.int64)
        ranks = rng.choice(int(ends[-1]), size=num_chosen, replace=False)
        blocks = np.searchsorted(ends, ranks, side="right")
        places = ranks - ends[blocks]
        contents = self._slots.blocks
        return [contents[block][place] for block, place in zip(blocks.tolist(), places.tolist(), strict=True)]

    def draw(self, weighting: Weighting, *, num_chosen: int, rng: np.random.Generator) -> list[int]:
        """Slots drawn successively and without replacement by weight; there must be as many as are wanted.

        A block rings when the first of its items does: after an exponential time at the rate of its sum. The K items
        that ring first are in the K blocks that ring first; only in these every item is looked at.
        """
        self._refresh(weighting)
        scale = weighting.scale
        sums = _Sums(np.array(self._best), np.array(self._sums), np.array(self._num_unknown))
        unknown_score = sums.best_known(default=0.0)
        chosen: list[int] = []
        # Once, but where fewer than K are within a factor e^-745 of the best: then again, relative to the next best.
        while len(chosen) < num_chosen:
            top = max(sums.best_known(default=-np.inf), unknown_score if sums.num_unknown.any() else -np.inf)
            rates = sums.sums * relative_weights(sums.best, top, scale=scale)
            rates += sums.num_unknown * relative_weights(np.array(min(unknown_score, top)), top, scale=scale)
            block_times = ringing_times(rates, rng)
            opened = earliest(block_times, num_chosen - len(chosen))
            contents = self._open(opened, weighting)
            is_left = ~np.isin(contents.slots, chosen) if chosen else np.ones(len(contents.slots), dtype=bool)
            scores = np.where(np.isnan(contents.scores), unknown_score, contents.scores)
            weights = np.where(is_left, relative_weights(scores, top, scale=scale), 0.0)
            times = contents.item_times(weights, block_times[opened], rng)
            first = earliest(times, num_chosen - len(chosen))
            chosen += contents.slots[first].tolist()
            if len(chosen) < num_chosen:
                is_left[first] = False
                sums.put(opened, contents.sum_up(scale, is_left=is_left))
        return chosen

    def _refresh(self, weighting: Weighting) -> None:
        views = _Sums(
            np.frombuffer(self._best, dtype=np.float64),
            np.frombuffer(self._sums, dtype=np.float64),
            np.frombuffer(self._num_unknown, dtype=np.int32),
        )
        if weighting != self._weighting:
            self._weighting = weighting
            views.sums.fill(np.nan)
        stale = np.flatnonzero(np.isnan(views.sums))
        if len(stale):
            views.put(stale, self._open(stale, weighting).sum_up(weighting.scale, is_left=np.True_))

    def _open(self, indexes: Indexes, weighting: Weighting) -> _Contents:
        sizes = np.frombuffer(self._sizes, dtype=np.int32)[indexes]
        slots = concatenate([self._slots.blocks[index] for index in indexes.tolist()])
        return _Contents(slots, weighting.scores(self._columns, slots), sizes)


@dataclass(slots=True)
class _Sums:
    """Of each block: best known score (-inf without any), sum of weights relative to it, number of unknown scores."""

    best: Floats
    sums: Floats
    num_unknown: NDArray[np.int32]

    def best_known(self, *, default: float) -> float:
        known = self.best[self.sums > 0.0]
        return float(known.max()) if len(known) else default

    def put(self, indexes: Indexes, other: _Sums) -> None:
        self.best[indexes], self.sums[indexes] = other.best, other.sums
        self.num_unknown[indexes] = other.num_unknown


@dataclass(slots=True)
class _Contents:
    """The items of some blocks, one block after the other."""

    slots: Slots
    scores: Floats
    """NaN: unknown."""
    sizes: NDArray[np.int32]

    @property
    def starts(self) -> Indexes:
        return np.cumsum(self.sizes, dtype=np.intp) - self.sizes

    def sum_up(self, scale: float, *, is_left: NDArray[np.bool_] | np.bool_) -> _Sums:
        """The sums over the items that are left."""
        is_unknown = np.isnan(self.scores)
        is_known = is_left & ~is_unknown
        known = np.where(is_known, self.scores, -np.inf)
        best = np.maximum.reduceat(known, self.starts)
        weights = np.where(is_known, relative_weights(known, np.repeat(best, self.sizes), scale=scale), 0.0)
        num_unknown = np.add.reduceat(is_left & is_unknown, self.starts, dtype=np.int32)
        return _Sums(best, np.add.reduceat(weights, self.starts), num_unknown)

    def item_times(self, weights: Floats, block_times: Floats, rng: np.random.Generator) -> Floats:
        """When each item rings, given when the first of its block does.

        An exponential clock has no memory: after the first of a block has rung, the others wait as long as if they
        had just begun. So let all begin together, and move the first ringing to the time of the block.
        """
        times = ringing_times(weights, rng)
        shift = block_times - np.minimum.reduceat(times, self.starts)
        return times + np.repeat(shift, self.sizes)

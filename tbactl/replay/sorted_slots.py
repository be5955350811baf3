"""Slots in the order of a key, in blocks that are small enough to insert into and to sum up again."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tbactl.replay.columns import Slots

MAX_BLOCK = 128
"""Slots in a block. A weighted draw of 160 looks at 160 blocks and at one number of each other block."""

Key = Callable[[int], Any]


class BlockObserver(Protocol):
    """Hears which blocks change, to keep one number (or a few) for each."""

    def block_added(self) -> None:
        """There was none, now there is one."""
        ...

    def block_changed(self, index: int) -> None:
        """Block `index` gained or lost a slot."""
        ...

    def block_split(self, index: int) -> None:
        """The upper half of block `index` is block `index + 1` now."""
        ...

    def block_removed(self, index: int) -> None:
        """Block `index` was empty."""
        ...


class SortedSlots:
    """A sorted list of slots: O(log slots) to add, remove and find, O(1) at both ends.

    sortedcontainers' lists have the same idea, but hold an object for each item and one for its key: twenty times the
    four bytes of a slot. Here keys are looked up in the columns when they are needed.

    Args:
        key: of a slot; unique, and the same as long as the slot is in the list.
        slots: to begin with, sorted.
        block_sizes: how `slots` are divided; what is drawn from blocks depends on it. Empty: as good as any.
    """

    __slots__ = ("_key", "_num_slots", "blocks", "observer")

    def __init__(self, key: Key, slots: Sequence[int] = (), *, block_sizes: Sequence[int] = ()) -> None:
        self._key = key
        self._num_slots = len(slots)
        self.observer: BlockObserver | None = None
        self.blocks: list[array[int]] = []
        start = 0
        for size in block_sizes or _even_sizes(len(slots)):
            self.blocks.append(array("i", slots[start : start + size]))
            start += size

    def __len__(self) -> int:
        return self._num_slots

    def __iter__(self) -> Iterator[int]:
        for block in self.blocks:
            yield from block

    def first(self) -> int:
        """The slot with the smallest key."""
        return self.blocks[0][0]

    def last(self) -> int:
        """The slot with the greatest key."""
        return self.blocks[-1][-1]

    def to_array(self) -> Slots:
        """All, in order."""
        return concatenate(self.blocks)

    def newest_first(self) -> Iterator[int]:
        """From the greatest key down."""
        for block in reversed(self.blocks):
            yield from reversed(block)

    def add(self, slot: int) -> None:
        """Put a slot where its key belongs."""
        self._num_slots += 1
        if not self.blocks:
            self.blocks.append(array("i", (slot,)))
            if self.observer is not None:
                self.observer.block_added()
            return
        index = min(self.find_block(slot), len(self.blocks) - 1)
        block = self.blocks[index]
        bisect.insort(block, slot, key=self._key)
        if len(block) > MAX_BLOCK:
            half = len(block) // 2
            self.blocks[index : index + 1] = [block[:half], block[half:]]
            if self.observer is not None:
                self.observer.block_split(index)
        elif self.observer is not None:
            self.observer.block_changed(index)

    def remove(self, slot: int) -> None:
        """Take out a slot that was added."""
        index = self.find_block(slot)
        block = self.blocks[index]
        place = bisect.bisect_left(block, self._key(slot), key=self._key)
        removed = block.pop(place)
        assert removed == slot
        self._num_slots -= 1
        if not block:
            del self.blocks[index]
            if self.observer is not None:
                self.observer.block_removed(index)
        elif self.observer is not None:
            self.observer.block_changed(index)

    def find_block(self, slot: int) -> int:
        """The block that holds `slot`, or would; one past the last when its key is the greatest."""
        key, blocks = self._key(slot), self.blocks
        # Most of what comes is the newest, most of what goes is the oldest.
        if key > self._key(blocks[-1][0]):
            return len(blocks) - 1
        if key <= self._key(blocks[0][-1]):
            return 0
        return bisect.bisect_left(blocks, key, key=lambda block: self._key(block[-1]))


def concatenate(blocks: Sequence[array[int]]) -> Slots:
    """The slots of some blocks, one after the other."""
    return np.frombuffer(b"".join(blocks), dtype=np.int32)


def _even_sizes(num_slots: int) -> list[int]:
    # As full as blocks are in the long run.
    size = 3 * MAX_BLOCK // 4
    return [min(size, num_slots - start) for start in range(0, num_slots, size)]

"""In what order prompts are drawn: an urn without replacement, and most recent first. A draw is O(1) in the prompts.

Both orders can take draws back: between `begin` and `end` they write down how.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np


class PromptSet:
    """A set of prompt ids that can be indexed, for uniform draws. Its order depends on its history alone."""

    def __init__(self, items: Iterable[int] = ()) -> None:
        self.items = list(items)
        self._position = {item: index for index, item in enumerate(self.items)}

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: int) -> bool:
        return item in self._position

    def add(self, item: int) -> None:
        assert item not in self._position
        self._position[item] = len(self.items)
        self.items.append(item)

    def remove(self, item: int) -> int:
        """Take an item out; returns where it was."""
        position = self._position[item]
        self.swap(position, len(self.items) - 1)
        self.items.pop()
        del self._position[item]
        return position

    def put_back(self, item: int, position: int) -> None:
        """Undo the removal of an item, if that was the last change."""
        self.add(item)
        self.swap(position, len(self.items) - 1)

    def swap(self, left: int, right: int) -> None:
        items = self.items
        items[left], items[right] = items[right], items[left]
        self._position[items[left]], self._position[items[right]] = left, right

    def position(self, item: int) -> int:
        return self._position[item]


class Urn:
    """Uniform draws without replacement; when all were drawn, all go back. A new prompt goes in undrawn.

    One list of which the first `num_left` are still in the urn: drawing swaps across that boundary.
    """

    def __init__(self, items: Iterable[int] = (), *, num_left: int = 0) -> None:
        self._prompts = PromptSet(items)
        self.num_left = num_left
        self._num_left_before = num_left
        self._swaps: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self._prompts)

    def __contains__(self, item: int) -> bool:
        return item in self._prompts

    @property
    def items(self) -> list[int]:
        return self._prompts.items

    def add(self, item: int) -> None:
        self._prompts.add(item)
        self._prompts.swap(self.num_left, len(self._prompts) - 1)
        self.num_left += 1

    def remove(self, item: int) -> None:
        position = self._prompts.position(item)
        if position < self.num_left:
            self.num_left -= 1
            self._prompts.swap(position, self.num_left)
        self._prompts.remove(item)

    def draw(self, rng: np.random.Generator) -> int:
        if self.num_left == 0:
            self.num_left = len(self._prompts)
        self.num_left -= 1
        position = int(rng.integers(self.num_left + 1))
        self._prompts.swap(position, self.num_left)
        if self._swaps is not None:
            self._swaps.append((position, self.num_left))
        return self._prompts.items[self.num_left]

    def begin(self) -> None:
        """Draws from here on can be undone; until `end`, prompts are neither added nor removed."""
        self._num_left_before = self.num_left
        self._swaps = []

    def undo(self) -> None:
        """Back to where it began."""
        for left, right in reversed(self._swaps or ()):
            self._prompts.swap(left, right)
        self.num_left = self._num_left_before
        self._swaps = None

    def end(self) -> None:
        """Draws are final."""
        self._swaps = None


RecencyKey = tuple[int, int]
"""(rank, newest version): the greatest comes first. Rank 0: not fresh; 1: fresh; 2: before other fresh ones."""


class RecencyOrder:
    """Prompts by `RecencyKey`: highest rank first, among these the newest version first, then uniformly."""

    def __init__(self) -> None:
        self._keys: list[RecencyKey] = []
        self._prompts: dict[RecencyKey, PromptSet] = {}
        self._key_of: dict[int, RecencyKey] = {}
        self._moves: list[tuple[int, RecencyKey, int]] | None = None

    def place(self, prompt_id: int, key: RecencyKey) -> None:
        """Put a prompt under `key`, wherever it was before."""
        old_key = self._key_of.get(prompt_id)
        if old_key == key:
            return
        if old_key is not None:
            position = self._take_out(prompt_id)
            if self._moves is not None:
                self._moves.append((prompt_id, old_key, position))
        self._prompts_at(key).add(prompt_id)
        self._key_of[prompt_id] = key

    def discard(self, prompt_id: int) -> None:
        if prompt_id in self._key_of:
            self._take_out(prompt_id)

    def begin(self) -> None:
        """Moves from here on can be undone; until `end`, prompts are neither added nor discarded."""
        self._moves = []

    def undo(self) -> None:
        """Back to where it began."""
        for prompt_id, key, position in reversed(self._moves or ()):
            self._take_out(prompt_id)
            self._prompts_at(key).put_back(prompt_id, position)
            self._key_of[prompt_id] = key
        self._moves = None

    def end(self) -> None:
        """Moves are final."""
        self._moves = None

    def _prompts_at(self, key: RecencyKey) -> PromptSet:
        if key not in self._prompts:
            self._prompts[key] = PromptSet()
            bisect.insort(self._keys, key)
        return self._prompts[key]

    def _take_out(self, prompt_id: int) -> int:
        """Remove a prompt from where it is; returns at which position."""
        key = self._key_of.pop(prompt_id)
        prompts = self._prompts[key]
        position = prompts.remove(prompt_id)
        if not prompts:
            del self._prompts[key]
            self._keys.remove(key)
        return position

    def draw(self, rng: np.random.Generator, *, excluded: set[int]) -> int:
        """One of the most recent prompts that are not excluded; at least one must not be."""
        for key in reversed(self._keys):
            items = self._prompts[key].items
            if len(items) > 2 * len(excluded):
                # More than half are allowed: trying takes two draws on average, building a list takes len(items).
                while (item := items[int(rng.integers(len(items)))]) in excluded:
                    pass
                return item
            allowed = [item for item in items if item not in excluded]
            if allowed:
                return allowed[int(rng.integers(len(allowed)))]
        raise AssertionError("all prompts are excluded")

    def dump(self) -> list[tuple[int, int, list[int]]]:
        """All state, in order: (rank, newest version, prompt ids)."""
        return [(*key, list(self._prompts[key].items)) for key in self._keys]

    @classmethod
    def restore(cls, dumped: list[tuple[int, int, list[int]]]) -> RecencyOrder:
        """The reverse of `dump`."""
        order = cls()
        for rank, version, prompt_ids in dumped:
            for prompt_id in prompt_ids:
                order.place(prompt_id, (rank, version))
        return order

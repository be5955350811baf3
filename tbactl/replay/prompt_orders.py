"""In what order prompts are drawn: an urn without replacement, and most recent first. A draw is O(1) in the prompts."""

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

    def remove(self, item: int) -> None:
        self.swap(self._position[item], len(self.items) - 1)
        self.items.pop()
        del self._position[item]

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
        self._prompts.swap(int(rng.integers(self.num_left + 1)), self.num_left)
        return self._prompts.items[self.num_left]


RecencyKey = tuple[bool, int]
"""(is fresh, newest version): the greatest is the most recent."""


class RecencyOrder:
    """Prompts by `RecencyKey`: fresh ones first, among these the newest version first, then uniformly."""

    def __init__(self) -> None:
        self._keys: list[RecencyKey] = []
        self._prompts: dict[RecencyKey, PromptSet] = {}
        self._key_of: dict[int, RecencyKey] = {}

    def place(self, prompt_id: int, key: RecencyKey) -> None:
        """Put a prompt under `key`, wherever it was before."""
        if self._key_of.get(prompt_id) == key:
            return
        self.discard(prompt_id)
        if key not in self._prompts:
            self._prompts[key] = PromptSet()
            bisect.insort(self._keys, key)
        self._prompts[key].add(prompt_id)
        self._key_of[prompt_id] = key

    def discard(self, prompt_id: int) -> None:
        key = self._key_of.pop(prompt_id, None)
        if key is None:
            return
        prompts = self._prompts[key]
        prompts.remove(prompt_id)
        if not prompts:
            del self._prompts[key]
            self._keys.remove(key)

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

    def dump(self) -> list[tuple[bool, int, list[int]]]:
        """All state, in order: (is fresh, newest version, prompt ids)."""
        return [(*key, list(self._prompts[key].items)) for key in self._keys]

    @classmethod
    def restore(cls, dumped: list[tuple[bool, int, list[int]]]) -> RecencyOrder:
        """The reverse of `dump`."""
        order = cls()
        for is_fresh, version, prompt_ids in dumped:
            for prompt_id in prompt_ids:
                order.place(prompt_id, (is_fresh, version))
        return order

"""What a buffer holds, whatever prompt it belongs to: found by its tokens, and in the order in which it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from tbactl.replay.columns import Columns
from tbactl.replay.duplicates import DuplicateIndex
from tbactl.replay.packing import token_bytes_of
from tbactl.replay.sorted_slots import SortedSlots
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.types import Trajectory

Eviction = Literal["oldest", "lowest-reward"]


class Holdings:
    """All trajectories of a buffer. Its columns and its prompts change here, and only here.

    Args:
        eviction: what leaves first: the oldest, or the one with the lowest reward, of equal ones the oldest.
    """

    def __init__(self, eviction: Eviction) -> None:
        self.columns = Columns()
        self.versions: Counter[int] = Counter()
        self._duplicates = DuplicateIndex(self.columns)
        self._ages = SortedSlots(self.columns.age_key)
        self._worths = SortedSlots(self.columns.worth_key) if eviction == "lowest-reward" else None

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self._ages)

    @property
    def keeps_worths(self) -> bool:
        """Whether trajectories leave by reward, so that they are also kept in that order."""
        return self._worths is not None

    def oldest(self) -> int:
        """Slot of the oldest; there must be one."""
        return self._ages.first()

    def next_to_leave(self) -> int:
        """Slot of the one to evict when there are too many."""
        return (self._ages if self._worths is None else self._worths).first()

    def find(self, prompt: StoredPrompt, data: bytes) -> int | None:
        """Slot of the prompt's trajectory with the same tokens as a packed one, or None."""
        return self._duplicates.find(prompt.prompt_id, token_bytes_of(data))

    def add(self, prompt: StoredPrompt, trajectory: Trajectory, data: bytes, *, insert_number: int) -> int:
        """Store a trajectory, with its packed form, whose tokens its prompt does not hold; returns its slot."""
        slot = self.columns.add(trajectory, data, owner=prompt, insert_number=insert_number)
        prompt.add(slot)
        self._duplicates.add(prompt.prompt_id, slot)
        self._ages.add(slot)
        if self._worths is not None:
            self._worths.add(slot)
        self.versions[self.columns.first_version[slot]] += 1
        return slot

    def remove(self, slot: int) -> StoredPrompt:
        """Let go of a trajectory; returns its prompt."""
        prompt = self.owner(slot)
        prompt.remove(slot)
        self._duplicates.remove(prompt.prompt_id, slot)
        self._ages.remove(slot)
        if self._worths is not None:
            self._worths.remove(slot)
        version = self.columns.first_version[slot]
        self.versions[version] -= 1
        if not self.versions[version]:
            del self.versions[version]
        self.columns.remove(slot)
        return prompt

    def owner(self, slot: int) -> StoredPrompt:
        """The prompt of what is held at `slot`."""
        owner = self.columns.owner[slot]
        assert owner is not None, f"slot {slot} is free"
        return owner

    def restore(self, prompts: Iterable[StoredPrompt]) -> None:
        """Take in prompts that a snapshot has filled, with their columns."""
        held = self.columns.held()
        self._ages = SortedSlots(self.columns.age_key, self.columns.by_age(held))
        if self._worths is not None:
            self._worths = SortedSlots(self.columns.worth_key, self.columns.by_worth(held))
        self.versions = Counter(self.columns.take("first_version", held).tolist())
        for prompt in prompts:
            for slot in prompt.ages:
                self._duplicates.add(prompt.prompt_id, slot)

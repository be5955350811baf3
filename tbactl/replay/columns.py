"""The trajectories of a buffer as columns: one place (*slot*) for each trajectory, its bytes and what orders it.

A Python object for each of a million trajectories would weigh more than its numbers do; columns weigh what they hold,
and whole ranges of them can be computed with at once. Slots of what was removed are used again, so a slot number means
something only while its trajectory is held, and nothing that is drawn depends on it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.packing import text_of
from tbactl.types import Trajectory

if TYPE_CHECKING:
    from tbactl.replay.stored_prompt import StoredPrompt

Slots = NDArray[np.int32]

# Type codes of the numbers that belong to a trajectory, in the order snapshots write them.
NUMBERS = {
    "reward": "d",
    "residual": "d",
    "insert_number": "q",
    "first_version": "i",
    "num_draws": "i",
}


class Columns:
    """Fields of all trajectories by slot. Arrays of the standard library: they grow in place, a sixteenth at a time.

    Attributes:
        reward: as given by the task.
        residual: VarGrad residual when last trained on, in reward units; NaN: never trained on.
        insert_number: running number of insertions into the buffer; -1 in a free slot.
        first_version: oldest policy version of a token, as which the trajectory counts.
        num_draws: how often it was drawn.
        data: the packed trajectory (`packing.py`).
        owner: the prompt it belongs to.
        fresh_position: where it stands in its prompt's `fresh`; means nothing unless it is fresh.
    """

    def __init__(self) -> None:
        self.reward = array("d")
        self.residual = array("d")
        self.insert_number = array("q")
        self.first_version = array("i")
        self.num_draws = array("i")
        self.fresh_position = array("i")
        self.data: list[bytes] = []
        self.owner: list[StoredPrompt | None] = []
        self._free = array("i")

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self.data) - len(self._free)

    @staticmethod
    def item_bytes(name: str) -> int:
        """Bytes of one number of a column."""
        return array(NUMBERS[name]).itemsize

    def add(self, trajectory: Trajectory, data: bytes, *, owner: StoredPrompt, insert_number: int) -> int:
        """Store a trajectory that was not drawn yet, with its packed form; returns its slot."""
        slot = self._free.pop() if self._free else self._grow()
        self.reward[slot] = trajectory.reward
        self.residual[slot] = math.nan
        self.insert_number[slot] = insert_number
        self.first_version[slot] = trajectory.completion.first_version
        self.num_draws[slot] = 0
        self.data[slot] = data
        self.owner[slot] = owner
        return slot

    def _grow(self) -> int:
        for name, code in (*NUMBERS.items(), ("fresh_position", "i")):
            getattr(self, name).frombytes(bytes(array(code).itemsize))
        self.data.append(b"")
        self.owner.append(None)
        return len(self.data) - 1

    def extend(self, numbers: dict[str, bytes], data: Iterable[bytes]) -> range:
        """Append many, as a snapshot holds them; returns their slots. Owners are the caller's to set.

        Raises:
            ValueError: not as many numbers as data.
            KeyError: a column is missing.
        """
        assert not self._free
        start = len(self.data)
        self.data.extend(data)
        num_added = len(self.data) - start
        for name in NUMBERS:
            getattr(self, name).frombytes(numbers[name])
            if len(getattr(self, name)) != len(self.data):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {len(self.data)} trajectories")
        self.fresh_position.frombytes(bytes(num_added * self.fresh_position.itemsize))
        self.owner.extend([None] * num_added)
        return range(start, len(self.data))

    def remove(self, slot: int) -> None:
        """Free a slot."""
        self.data[slot], self.owner[slot] = b"", None
        self.insert_number[slot] = -1
        self._free.append(slot)

    def text(self, slot: int) -> str:
        """The completion's text."""
        return text_of(self.data[slot])

    def age_key(self, slot: int) -> tuple[int, int]:
        """Sorts oldest first: by policy version, then by insertion. Unique."""
        return self.first_version[slot], self.insert_number[slot]

    def worth_key(self, slot: int) -> tuple[float, int, int]:
        """Sorts lowest reward first, equal ones oldest first. Unique."""
        return self.reward[slot], self.first_version[slot], self.insert_number[slot]

    def by_age(self, slots: Slots) -> list[int]:
        """Slots sorted by `age_key`."""
        keys = (self.take("insert_number", slots), self.take("first_version", slots))
        return slots[np.lexsort(keys)].tolist()

    def by_worth(self, slots: Slots) -> list[int]:
        """Slots sorted by `worth_key`."""
        keys = (self.take("insert_number", slots), self.take("first_version", slots), self.take("reward", slots))
        return slots[np.lexsort(keys)].tolist()

    def take(self, name: str, slots: Slots) -> NDArray[Any]:
        """Values of a column at `slots`, as a copy."""
        # No view of a column may outlive its use: an array of which one exists cannot grow.
        column: array[Any] = getattr(self, name)
        return np.frombuffer(memoryview(column), dtype=column.typecode)[slots]

    def held(self) -> Slots:
        """All slots in use, in no order that means anything."""
        return np.flatnonzero(np.frombuffer(self.insert_number, dtype=np.int64) >= 0).astype(np.int32)

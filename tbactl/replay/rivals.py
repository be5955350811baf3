"""Between a group that arrives and its prompt: which of the held trajectories each new one is almost the same as."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.columns import Columns
from tbactl.replay.near_duplicates import Flags, HeldTexts, Likeness
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.types import TrajectoryGroup


class Rivals:
    """The near duplicates of one group's trajectories, among the held and among those of the group stored before."""

    def __init__(
        self, flags: Flags, slots: NDArray[np.int32], insert_numbers: NDArray[np.int64], *, columns: Columns
    ) -> None:
        self._flags = flags
        self._columns = columns
        self._held = slots, insert_numbers
        # Of the group: (slot, insert number); None where one was not stored.
        self._settled: list[tuple[int, int] | None] = []

    @classmethod
    def find(cls, likeness: Likeness, group: TrajectoryGroup, prompt: StoredPrompt, *, columns: Columns) -> Rivals:
        """Compare a group with what its prompt holds."""
        slots = prompt.ages.to_array()
        insert_numbers = columns.take("insert_number", slots)
        held = HeldTexts(slots=slots, insert_numbers=insert_numbers, text_of=columns.text)
        flags = likeness.compare([trajectory.completion.text for trajectory in group.trajectories], held)
        return cls(flags, slots, insert_numbers, columns=columns)

    def of(self, index: int) -> list[int]:
        """Slots of the rivals of the group's trajectory `index` that are held now; all before it are settled."""
        slots, insert_numbers = self._held
        flags = self._flags[index, : len(slots) + len(self._settled)]
        held = np.flatnonzero(flags[: len(slots)])
        near = [*zip(slots[held].tolist(), insert_numbers[held].tolist(), strict=True)]
        near += filter(None, (self._settled[place] for place in np.flatnonzero(flags[len(slots) :]).tolist()))
        return [slot for slot, number in near if self._columns.insert_number[slot] == number]

    def settle(self, slot: int | None) -> None:
        """The group's next trajectory was stored at `slot`, or was not."""
        self._settled.append(None if slot is None else (slot, self._columns.insert_number[slot]))

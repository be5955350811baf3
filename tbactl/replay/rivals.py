"""Between a group that arrives and its prompt: which of the held trajectories each new one is almost the same as."""

from __future__ import annotations

import numpy as np

from tbactl.replay.columns import Columns
from tbactl.replay.near_duplicates import Flags, HeldTexts, Likeness
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.types import TrajectoryGroup


class Rivals:
    """The near duplicates of one group's trajectories, among the held and among those of the group stored before."""

    def __init__(self, flags: Flags, slots: list[int], insert_numbers: list[int], *, columns: Columns) -> None:
        self._flags = flags
        self._columns = columns
        # Of the held ones, then of the group's: (slot, insert number); None where one was not stored.
        self._candidates: list[tuple[int, int] | None] = [*zip(slots, insert_numbers, strict=True)]

    @classmethod
    def find(cls, likeness: Likeness, group: TrajectoryGroup, prompt: StoredPrompt, *, columns: Columns) -> Rivals:
        """Compare a group with what its prompt holds."""
        slots = prompt.ages.to_array()
        insert_numbers = columns.take("insert_number", slots)
        held = HeldTexts(slots=slots, insert_numbers=insert_numbers, text_of=columns.text)
        flags = likeness.compare([trajectory.completion.text for trajectory in group.trajectories], held)
        return cls(flags, slots.tolist(), insert_numbers.tolist(), columns=columns)

    def of(self, index: int) -> list[int]:
        """Slots of the rivals of the group's trajectory `index` that are held now; all before it are settled."""
        flags = self._flags[index, : len(self._candidates)]
        near = [self._candidates[place] for place in np.flatnonzero(flags).tolist()]
        return [slot for slot, number in filter(None, near) if self._columns.insert_number[slot] == number]

    def settle(self, slot: int | None) -> None:
        """The group's next trajectory was stored at `slot`, or was not."""
        self._candidates.append(None if slot is None else (slot, self._columns.insert_number[slot]))

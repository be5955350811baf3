"""What was found out about trajectories, by slot. What belongs to an earlier owner of a slot counts as nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Slots = NDArray[np.int32]
InsertNumbers = NDArray[np.int64]


class SlotMemory:
    """One row of an array for each slot, with the insertion that it is of.

    Args:
        dtype: Of the rows.
        shape: Of one row.
    """

    def __init__(self, dtype: DTypeLike, *, shape: tuple[int, ...] = ()) -> None:
        self.rows: NDArray[Any] = np.zeros((0, *shape), dtype=dtype)
        self._owners = np.zeros(0, dtype=np.int64)

    def missing(self, slots: Slots, insert_numbers: InsertNumbers) -> NDArray[np.intp]:
        """Which of some trajectories have no row yet, as places in `slots`; there is room for all of them then."""
        self._make_room(int(slots.max(initial=-1)) + 1)
        return np.flatnonzero(self._owners[slots] != insert_numbers)

    def put(self, slots: Slots, insert_numbers: InsertNumbers, rows: NDArray[Any]) -> None:
        """Keep the rows of some trajectories, for which `missing` has made room."""
        self.rows[slots] = rows
        self._owners[slots] = insert_numbers

    def _make_room(self, num_slots: int) -> None:
        num_more = num_slots - len(self.rows)
        if num_more > 0:
            num_more = max(num_more, len(self.rows) // 8)
            self.rows = np.concatenate((self.rows, np.zeros((num_more, *self.rows.shape[1:]), self.rows.dtype)))
            self._owners = np.concatenate((self._owners, np.full(num_more, -1, dtype=np.int64)))

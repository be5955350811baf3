"""What happened to the trajectories of a buffer: in one insertion, and over its life."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InsertReport:
    """What one insertion did."""

    num_new: int
    """Trajectories with tokens that the prompt did not hold."""
    num_duplicates: int
    """Trajectories whose tokens the prompt held already; the newer copy stays."""
    num_evicted: int
    """Trajectories, of whatever prompt, that left because the prompt or the buffer was full."""
    num_near_duplicates: int = 0
    """Trajectories that were left out, or left, because one with a reward as high or higher is almost the same."""


@dataclasses.dataclass(slots=True, kw_only=True)
class BufferCounters:
    """Running totals over the life of a buffer, restarts included."""

    num_insertions: int = 0
    num_new: int = 0
    num_duplicates: int = 0
    num_near_duplicates: int = 0
    num_evicted: int = 0
    num_expired: int = 0
    num_draws: int = 0

    def copy(self) -> BufferCounters:
        """The totals of now."""
        return dataclasses.replace(self)

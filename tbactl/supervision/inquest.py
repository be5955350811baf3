"""What every process was doing when a run failed: last signs of life, and what lies in the rings. It never waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tbactl.config.layout import ShmLayout
from tbactl.ipc.control_page import ProcessState, Slot
from tbactl.ipc.ring_file import RingError, RingStats, ring_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """When a process was last heard of."""

    process: str
    pid: int
    state: str
    """As it said itself."""
    is_alive: bool
    heartbeat_s: float | None
    """Seconds since its last heartbeat; None: it never gave one."""
    progress_s: float | None
    """Seconds since its main loop last moved."""

    @classmethod
    def of(cls, process: str, slot: Slot, *, is_alive: bool, now_ns: int) -> Sign:
        """Read a slot of the control page."""

        def since(word: str) -> float | None:
            return round(max(0, now_ns - at_ns) / 1e9, 3) if (at_ns := slot.get(word)) else None

        return cls(
            process=process,
            pid=slot.get("pid"),
            state=ProcessState(slot.get("state")).name,
            is_alive=is_alive,
            heartbeat_s=since("heartbeat_ns"),
            progress_s=since("progress_ns"),
        )

    def __str__(self) -> str:
        if self.heartbeat_s is None or self.progress_s is None:
            return f"{self.process}: not heard of yet"
        life = "" if self.is_alive else ", has ended"
        return (
            f"{self.process} (pid {self.pid}): {self.state}{life}, last heartbeat {self.heartbeat_s:.1f} s ago, last "
            f"progress {self.progress_s:.1f} s ago"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquest:
    """The signs of all processes and the state of all rings, at one moment."""

    signs: Sequence[Sign]
    rings: Sequence[RingStats | None]
    """By searcher; None: it cannot be read."""

    @classmethod
    def hold(cls, signs: Sequence[Sign], *, shm: ShmLayout, num_searchers: int) -> Inquest:
        """Look at the rings as well."""
        return cls(signs=signs, rings=[_ring(shm, index) for index in range(num_searchers)])

    def details(self) -> dict[str, Any]:
        """For events.jsonl."""
        return {
            "processes": [asdict(sign) for sign in self.signs],
            "rings": [None if ring is None else asdict(ring) for ring in self.rings],
        }

    def __str__(self) -> str:
        rings = (f"ring-{index}: {_shown(ring)}" for index, ring in enumerate(self.rings))
        return "\n".join(f"  | {line}" for line in (*map(str, self.signs), *rings))


def _ring(shm: ShmLayout, index: int) -> RingStats | None:
    try:
        return ring_stats(shm.ring(index))
    except (OSError, RingError):
        return None


def _shown(ring: RingStats | None) -> str:
    if ring is None:
        return "cannot be read"
    num_damaged = ring.num_corrupt + ring.num_lost
    return (
        f"{ring.used_bytes / ring.capacity_bytes:.0%} full, {ring.num_written - ring.num_read} groups unread of "
        f"{ring.num_written} written" + (f", {num_damaged} damaged" if num_damaged else "")
    )

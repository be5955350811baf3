"""In what order trajectories leave the buffer: oldest first, by policy version, then by insertion."""

from __future__ import annotations

import bisect
from collections import OrderedDict

from tbactl.replay.entries import StoredTrajectory


class AgeOrder:
    """All trajectories, oldest first: a queue for each version. O(1) but for a version's first and last trajectory."""

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[int, StoredTrajectory]] = {}
        self._sorted_versions: list[int] = []
        self._num_held = 0

    def __len__(self) -> int:
        return self._num_held

    @property
    def versions(self) -> dict[int, int]:
        """How many of each version, oldest first."""
        return {version: len(self._queues[version]) for version in self._sorted_versions}

    def add(self, stored: StoredTrajectory) -> None:
        """Add one that was inserted after all others of its version."""
        if stored.version not in self._queues:
            self._queues[stored.version] = OrderedDict()
            bisect.insort(self._sorted_versions, stored.version)
        self._queues[stored.version][stored.insert_number] = stored
        self._num_held += 1

    def remove(self, stored: StoredTrajectory) -> None:
        """Remove one that was added."""
        queue = self._queues[stored.version]
        del queue[stored.insert_number]
        if not queue:
            del self._queues[stored.version]
            self._sorted_versions.remove(stored.version)
        self._num_held -= 1

    def oldest(self) -> StoredTrajectory:
        """The oldest of all; there must be one."""
        return next(iter(self._queues[self._sorted_versions[0]].values()))

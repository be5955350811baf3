"""How often, and how soon, a dead searcher is started again."""

from __future__ import annotations

from collections.abc import Mapping

from tbactl.config.sections import SupervisionSection

MAX_BACKOFF_S = 60.0


class RestartPolicy:
    """Back-off that doubles with each restart of one searcher, up to a limit on their number.

    The count does not decay: a searcher that dies every hour has a fault that someone should look at.
    """

    def __init__(self, section: SupervisionSection) -> None:
        self._section = section
        self._restarts: dict[int, int] = {}

    @property
    def counts(self) -> Mapping[int, int]:
        """Restarts so far of each searcher that had one."""
        return self._restarts

    def next_delay_s(self, searcher: int) -> float | None:
        """Count one more restart and return the wait before it, or None when the limit is reached."""
        used = self._restarts.get(searcher, 0)
        if used >= self._section.max_restarts:
            return None
        self._restarts[searcher] = used + 1
        return min(self._section.restart_backoff_s * 2**used, MAX_BACKOFF_S)

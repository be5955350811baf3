"""Whether the engine gets on: one that turns and turns, and finishes nothing, looks alive to everybody else."""

from __future__ import annotations

import faulthandler

from tbactl.clock import Clock
from tbactl.errors import ChildFailedError

# Steps that a request may take for each of its tokens. One is the rule; some engines look ahead, or admit in a step of
# its own.
STEPS_PER_TOKEN = 2


class EngineWatch:
    """Ends a searcher whose engine has open requests and finishes none.

    Both limits must be passed. Steps alone say little of an engine that only asks elsewhere in each of them; time alone
    would end a slow one, whose completions take longer than the limit. Whoever is first in the engine's queue takes
    part in every step, so something must finish in as many steps as a request has tokens.

    Args:
        clock: for the limit.
        limit_s: longest time without a finished request.
        max_tokens: of a prompt and its completion together.
    """

    def __init__(self, *, clock: Clock, limit_s: float, max_tokens: int) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._max_steps = STEPS_PER_TOKEN * max_tokens
        self.begin()

    def begin(self) -> None:
        """Nothing is open, or something else than steps took the time: the limits count from here."""
        self._since_s = self._clock.monotonic_s()
        self._num_steps = 0

    def note_step(self, *, num_finished: int, num_open: int) -> None:
        """A step was done.

        Args:
            num_finished: requests that it returned; those that failed as well.
            num_open: requests that are left.

        Raises:
            ChildFailedError: none has finished for too long. The stacks of all threads are on standard error.
        """
        if num_finished:
            self.begin()
            return
        self._num_steps += 1
        silent_s = self._clock.monotonic_s() - self._since_s
        if self._num_steps <= self._max_steps or silent_s <= self._limit_s:
            return
        faulthandler.dump_traceback(all_threads=True)
        raise ChildFailedError(
            f"the engine has {num_open} open requests, and has finished none for {silent_s:.0f} s and "
            f"{self._num_steps} steps (limits: supervision.progress_timeout_s = {self._limit_s:g}, and "
            f"{self._max_steps} steps, {STEPS_PER_TOKEN} for each token of a prompt and its completion): it does not "
            f"admit them, or has lost them. The stacks of its threads are above. If completions really take that long, "
            f"raise supervision.progress_timeout_s."
        )

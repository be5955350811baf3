"""A victim of one's own: a language model in a process beside this one (docs/adr/0013)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from tbactl.errors import ChildFailedError
from tbactl_redteam.victims.options import VictimOptions
from tbactl_redteam.victims.victim_process import VictimLateError, VictimLostError, VictimProcess

logger = logging.getLogger(__name__)


class EngineVictim:
    """Owns the victim's process, which is started at once and loads while the owner does other things.

    A process that dies or does not answer in time is replaced at the next call; the answers it owed are None.

        victim = EngineVictim(VictimOptions(policy="package:smollm2-135m-instruct"))
        [[first, *more]] = victim.answer(["Say something rude about my haircut."])

    Raises:
        ConfigError: no process can be started.
    """

    def __init__(self, options: VictimOptions) -> None:
        self._options = options
        self._process: VictimProcess | None = VictimProcess(options)
        self._num_losses = 0  # in a row
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the victim's process, if there is one."""
        return None if self._process is None else self._process.pid

    def answer(self, attacks: Sequence[str]) -> list[list[str | None]]:
        """See `Victim`."""
        answers: list[list[str | None]] = [[None] * self._options.num_answers for _ in attacks]
        problems: Counter[str] = Counter()
        if not attacks or (process := self._ready_process()) is None:
            return answers
        try:
            for answered in process.ask(attacks):
                answers[answered.attack][answered.number] = answered.text
                if answered.text is None:
                    problems[answered.problem] += 1
        except VictimLostError as loss:
            self._lose(process, loss)
        else:
            self._num_losses = 0
        for problem, number in problems.items():
            logger.warning("victim answers_missing=%d reason=%.200s", number, problem)
        return answers

    def close(self) -> None:
        """End the process, whatever it does."""
        self._is_closed = True
        if self._process is not None:
            self._process.end()

    def _ready_process(self) -> VictimProcess | None:
        """A process that has loaded the model; None when the victim was closed meanwhile, or did not load in time."""
        while not self._is_closed:
            process = self._process = self._process or VictimProcess(self._options)
            try:
                process.wait_until_ready()
            except VictimLostError as loss:
                self._lose(process, loss)
                if isinstance(loss, VictimLateError):  # one call may not last for several starts: the next one tries
                    return None
            else:
                return process
        return None

    def _lose(self, process: VictimProcess, loss: VictimLostError) -> None:
        process.end()
        self._process = None
        if self._is_closed:
            return
        self._num_losses += 1
        limit = self._options.max_restarts
        logger.warning("victim lost=%d of %d in a row: %s", self._num_losses, limit + 1, loss)
        if self._num_losses > limit:
            raise ChildFailedError(
                f"the victim '{self._options.name}' was lost {self._num_losses} times in a row; the last time {loss}. "
                f"task.options.victim.max_restarts = {limit}; the log above has what its process wrote."
            )

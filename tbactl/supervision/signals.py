"""The wish to stop, from a signal, as a value that the supervisor's loop reads.

SIGINT   Ctrl-C                     exit 130
SIGTERM  a service manager          exit 143
SIGHUP   the terminal was closed    exit 129
SIGUSR2  `tbactl stop`              exit 0

A second SIGINT or SIGTERM asks for the end at once. While there is no loop yet, the first one leaves what is under way.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

from tbactl.clock import Clock
from tbactl.config.run_record import Outcome

STOP_SIGNAL = signal.SIGUSR2
# A wrapper (make, a package runner) may pass on the Ctrl-C that the terminal has already sent to everybody.
DEBOUNCE_S = 0.5


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Why a run is asked to stop, and what its exit code will be."""

    outcome: Outcome
    exit_code: int
    signal_name: str


class StoppedEarly(BaseException):
    """A run is asked to stop before anything of it lives. No Exception: nothing on its way is to take it for one."""

    def __init__(self, request: StopRequest) -> None:
        self.request = request
        super().__init__(request.signal_name)


class StopSignals:
    """Installs the handlers; `request` is the first wish, `hurry` whether there was a second one."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._first_s = 0.0
        self._raises = False
        self._previous: dict[signal.Signals, Callable[..., Any] | int | None] = {}
        self.request: StopRequest | None = None
        self.hurry = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, STOP_SIGNAL):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup: the terminal's end is not ours
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    @contextlib.contextmanager
    def obeyed_at_once(self) -> Iterator[None]:
        """A block that a signal leaves at once, wherever it is.

        Raises:
            StoppedEarly: there was one.
        """
        self._raises = True
        try:
            if self.request is not None:  # since the handlers were installed
                raise StoppedEarly(self.request)
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock.monotonic_s()
        if self.request is None:
            self._first_s = now
            self.request = _request(signal.Signals(number))
            if self._raises:
                raise StoppedEarly(self.request)
        elif number in (signal.SIGINT, signal.SIGTERM) and now - self._first_s > DEBOUNCE_S:
            self.hurry = True


def _request(number: signal.Signals) -> StopRequest:
    if number == STOP_SIGNAL:
        return StopRequest("stopped", 0, number.name)
    outcome: Outcome = "interrupted" if number is signal.SIGINT else "terminated"
    return StopRequest(outcome, 128 + number, number.name)

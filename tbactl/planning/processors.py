"""CPU cores that processes share, as the kernel's fair scheduler would: whoever works gets an equal share."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

Wait = Generator[simpy.Event, Any, None]
# Work shorter than this is done: sums of floating-point durations leave a rest.
NEGLIGIBLE_S = 1e-9


class Processors:
    """The cores of the machine. With 0 cores every process has its own device, and nobody slows anybody down.

    Args:
        env: the simulation.
        cores: of the machine; 0: no sharing.
        measured_cores: that a process had where its costs were measured; time is inversely proportional to cores.
    """

    def __init__(self, env: simpy.Environment, *, cores: int, measured_cores: int) -> None:
        self.env = env
        self._cores = cores
        self._measured_cores = measured_cores
        self._num_wanted = 0.0
        self.changed = env.event()
        """From here on the speed is another."""

    def speed(self, threads: float) -> float:
        """Seconds of measured work done in a second by a process with so many threads."""
        if not self._cores:
            return 1.0
        return threads * min(1.0, self._cores / max(1, self._num_wanted)) / self._measured_cores

    def want(self, threads: float) -> None:
        """So many threads more want to run; fewer when it is negative."""
        before = self.speed(1)
        self._num_wanted += threads
        if self.speed(1) != before:
            changed, self.changed = self.changed, self.env.event()
            changed.succeed()


class Worker:
    """What computes: a searcher, or all ranks of the trainer together.

    Args:
        processors: where it computes.
        threads: of each of its processes.
        num_processes: that it consists of.
    """

    def __init__(self, processors: Processors, *, threads: float, num_processes: int = 1) -> None:
        self._processors = processors
        self._threads = threads
        self._num_processes = num_processes
        self._is_busy = False

    @property
    def speed(self) -> float:
        """Seconds of measured work done in a second, now."""
        return self._processors.speed(self._threads)

    @property
    def speed_changes(self) -> simpy.Event:
        """When it will be another."""
        return self._processors.changed

    def set_busy(self, *, is_busy: bool) -> None:
        """Begin or stop to compute; nothing changes when it is so already."""
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._processors.want((1 if is_busy else -1) * self._threads * self._num_processes)

    def work(self, seconds: float) -> Wait:
        """Do what was measured to take `seconds`; busy afterwards."""
        env = self._processors.env
        self.set_busy(is_busy=True)
        while seconds > NEGLIGIBLE_S:
            speed, start_s = self.speed, env.now
            yield env.timeout(seconds / speed) | self.speed_changes
            seconds -= (env.now - start_s) * speed


def threads_of(*, cores: int, num_ranks: int, num_searchers: int, takes_turns: bool) -> tuple[float, float]:
    """Threads of a trainer rank and of a searcher, as `supervision.placement` gives them, on average over each kind.

    Args:
        cores: of the machine; 0: devices, and the numbers mean nothing.
        num_ranks: of the trainer.
        num_searchers: on this machine; where there are none, their number of threads means nothing.
        takes_turns: mode sync, in which everybody may use all cores.
    """
    if takes_turns:
        return max(1, cores), max(1, cores)
    share, extra = divmod(cores, num_ranks + num_searchers)
    if not share:
        return 1.0, 1.0
    # What does not divide goes to the searchers first. No more threads than cores: each process is bound to its own.
    for_searchers = min(extra, num_searchers)
    return share + (extra - for_searchers) / num_ranks, share + for_searchers / max(1, num_searchers)

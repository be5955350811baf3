"""A run that is killed on purpose, and resumed until it is finished."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.chaos.attempt import Attempt
from tbactl.chaos.observer import Observer
from tbactl.ipc.control_page import TrainerPhase

POLL_S = 0.001
# Rests after a sign on the control page are drawn from these, so that the kill falls anywhere in a step or a write.
STEP_S, WRITE_S = 0.3, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPoint:
    """Whom to kill, and when."""

    number: int
    victim: str
    """`trainer-0`, `searcher-1` or `supervisor`."""
    step: int
    """Optimizer steps that must be done first."""
    in_checkpoint: bool
    """Wait for the next checkpoint, and strike while it is being written."""
    rest: float
    """Share of the longest rest before the strike, 0 to 1."""

    @classmethod
    def draw(cls, number: int, *, seed: int, victims: Sequence[str], first_step: int, last_step: int) -> KillPoint:
        """The point of this number: victims in turn, every other one in a checkpoint; the rest is random."""
        rng = random.Random(f"{seed}-{number}")
        return cls(
            number=number,
            victim=victims[number % len(victims)],
            step=rng.randint(first_step, last_step),
            in_checkpoint=number // len(victims) % 2 == 0 and not victims[number % len(victims)].startswith("searcher"),
            rest=rng.random(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What the run was doing when the signal came."""

    step: int
    phase: str
    half_written: str
    """The checkpoint that was being written; empty: none."""


class RunAttempt(Attempt):
    """One start of `tbactl run` in a process of its own."""

    def __init__(self, directory: Path, *, arguments: Sequence[str], attempt: int) -> None:
        super().__init__(
            [sys.executable, "-m", "tbactl.cli", "run", *arguments, "--plain"],
            observer=Observer(directory / "runs", attempt=attempt),
            output=directory / f"output-{attempt}.txt",
        )

    @property
    def root(self) -> Path:
        """The run directory.

        Raises:
            RuntimeError: the run ended before it made one.
        """
        if self.observer.root is None:
            raise RuntimeError(f"the run did not begin:\n{self.output}")
        return self.observer.root

    def kill(self, point: KillPoint, *, bound_s: float) -> Strike:
        """Kill a process of the run when the point is reached.

        Raises:
            RuntimeError: the run ended, or hung, before.
        """
        until_s = time.monotonic() + bound_s
        while not self._is_due(point):
            if self.exit_code is not None or time.monotonic() > until_s:
                raise RuntimeError(f"point {point.number} was not reached:\n{self.output[-2000:]}")
            time.sleep(POLL_S)
            self.observer.look()
        time.sleep(point.rest * (WRITE_S if point.in_checkpoint else STEP_S))
        assert self.observer.page is not None
        pid = self.pid if point.victim == "supervisor" else self.observer.pid(point.victim)
        assert pid is not None
        phase = TrainerPhase(self.observer.page.trainer().get("phase")).name.lower()
        os.kill(pid, signal.SIGKILL)
        half = [path.name.strip(".").removesuffix(".tmp") for path in self._half_written()]
        return Strike(step=self.observer.version, phase=phase, half_written=", ".join(half))

    def _is_due(self, point: KillPoint) -> bool:
        observer = self.observer
        if observer.page is None or observer.version < point.step or not observer.layout.latest_checkpoint.exists():
            return False
        return not point.in_checkpoint or bool(self._half_written())

    def _half_written(self) -> list[Path]:
        return list(self.observer.layout.checkpoints.glob(".step_*.tmp"))

    def wait(self, *, bound_s: float) -> int:
        """The exit code, once nothing of the run is alive.

        Raises:
            RuntimeError: it hangs, or leaves processes behind.
        """
        until_s = time.monotonic() + bound_s
        while (exit_code := self.exit_code) is None:
            if time.monotonic() > until_s:
                raise RuntimeError(f"not over after {bound_s:g} s:\n{self.output[-2000:]}")
            self.look()
        if self.orphans():
            raise RuntimeError(f"processes left behind:\n{self.output[-2000:]}")
        return exit_code

"""What a living run holds: memory, descriptors and threads of each process, shared memory and files.

Everything is read from outside (/proc, the control page, the run directory), so that looking changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tbactl.config.run_record import read_run_record
from tbactl.errors import TbactlError
from tbactl.ipc.control_page import ControlPage, RunState

MEBIBYTE = 2**20
HISTORY = ("metrics.jsonl", "trajectories.jsonl", "events.jsonl", "evaluations.jsonl", "logs", "tensorboard")
"""Of a run directory, what grows with its length by design. Everything else must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look."""

    seconds: float
    """Since the run began to train."""
    step: int
    pids: dict[str, int]
    """Of each process, by name."""
    values: dict[str, float]
    """By quantity: `rss trainer-0` in MiB, `descriptors trainer-0`, `threads trainer-0`, `shared memory` in MiB."""


class Sampler:
    """Looks at the newest run below a directory, every `period_s`, from the moment it trains.

    Args:
        runs: the directory that run directories are made in.
        period_s: seconds between two looks.
    """

    def __init__(self, runs: Path, *, period_s: float) -> None:
        self._runs = runs
        self._period_s = period_s
        self._began_s = 0.0
        self._root: Path | None = None
        self._shm: Path | None = None
        self._page: ControlPage | None = None
        self._supervisor = 0
        self.samples: list[Sample] = []

    @property
    def elapsed_s(self) -> float:
        """Since the run began to train; 0 before."""
        return time.monotonic() - self._began_s if self._page is not None else 0.0

    def look(self) -> Sample | None:
        """Take a sample if one is due."""
        if self._page is None:
            self._attach()
        if self._page is None or (self.samples and self.elapsed_s < self.samples[-1].seconds + self._period_s):
            return None
        try:
            sample = self._sample(self._page)
        except psutil.NoSuchProcess:  # it ends, or one is being restarted
            return None
        self.samples.append(sample)
        return sample

    def _attach(self) -> None:
        try:
            root = (self._runs / "latest").resolve(strict=True)
            record = read_run_record(root)
            page = ControlPage.open(record.shm_directory / "control", read_only=True)
        except (OSError, ValueError, TbactlError):
            return  # it is being made
        if page.supervisor.get("run_state") == RunState.RUNNING:
            self._root, self._shm, self._page, self._supervisor = root, record.shm_directory, page, record.pid
            self._began_s = time.monotonic()

    def _sample(self, page: ControlPage) -> Sample:
        assert self._root is not None and self._shm is not None
        pids = {"supervisor": self._supervisor, "trainer-0": page.trainer().get("pid")}
        pids |= {f"searcher-{index}": page.searcher(index).get("pid") for index in range(page.num_searchers)}
        values: dict[str, float] = {}
        for name, pid in pids.items():
            process = psutil.Process(pid)
            with process.oneshot():
                values[f"rss {name}"] = process.memory_info().rss / MEBIBYTE
                values[f"descriptors {name}"] = process.num_fds()
                values[f"threads {name}"] = process.num_threads()
        entries = list(self._root.iterdir())
        values["shared memory"] = total_bytes(self._shm) / MEBIBYTE
        values["files"] = sum(total_bytes(entry) for entry in entries if entry.name not in HISTORY) / MEBIBYTE
        values["history"] = sum(total_bytes(entry) for entry in entries if entry.name in HISTORY) / MEBIBYTE
        return Sample(seconds=self.elapsed_s, step=page.trainer().get("policy_version"), pids=pids, values=values)


def total_bytes(path: Path) -> int:
    """Size of a file, or of all files below a directory. What is removed meanwhile counts nothing."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    if path.is_symlink():
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not path.is_dir():
            yield path.stat().st_size
            return
        for entry in path.iterdir():
            yield from _sizes(entry)

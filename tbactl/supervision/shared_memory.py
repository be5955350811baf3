"""The shared-memory directory of a run: made, owned and removed by the supervisor alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tbactl.config.derived import shared_memory_bytes, weight_copies
from tbactl.config.layout import SHM_PREFIX, SHM_ROOT, ShmLayout
from tbactl.config.sections import RunConfig
from tbactl.errors import CapacityError
from tbactl.ipc.control_page import ControlPage
from tbactl.ipc.ring import create_ring
from tbactl.supervision.identity import start_ticks

# Headers, the control page, the descriptions of published weights.
SMALL_FILES_BYTES = 2**20


def shared_memory_layout(run_directory: Path, *, root: Path = SHM_ROOT) -> ShmLayout:
    """Where this process puts the shared memory of a run."""
    return ShmLayout(root / f"{SHM_PREFIX}{os.getuid()}-{run_directory.name}-{os.getpid()}")


class SharedMemory:
    """A 0700 directory with control page, rings and a place for weights. It lives until `remove`, or its owner's death.

    The owner file stays locked meanwhile, so that nobody takes it for a dead run's (`reclaim.py`).

    Args:
        layout: where.
        config: sizes and numbers.
        run_directory: for the owner file.
        rings: the searchers that get a ring; None: all.
    """

    def __init__(
        self, layout: ShmLayout, *, config: RunConfig, run_directory: Path, rings: Iterable[int] | None = None
    ) -> None:
        self.layout = layout
        layout.root.mkdir(mode=0o700)
        try:
            self._owner_lock = _take_ownership(layout.owner, run_directory=run_directory)
            layout.weights.mkdir(mode=0o700)
            for searcher in range(config.searchers.num_searchers) if rings is None else rings:
                create_ring(layout.ring(searcher), capacity_bytes=config.searchers.ring_capacity_bytes)
            self.page = ControlPage.create(
                layout.control,
                num_trainer_ranks=config.trainer.num_ranks,
                num_searchers=config.searchers.num_searchers,
            )
        except BaseException:
            shutil.rmtree(layout.root, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the directory, then give up the lock. Calling it again does nothing."""
        if self._owner_lock >= 0:
            shutil.rmtree(self.layout.root, ignore_errors=True)
            os.close(self._owner_lock)
            self._owner_lock = -1


def check_free_space(config: RunConfig, *, policy_bytes: int, root: Path = SHM_ROOT) -> None:
    """Find out before anything starts that the file system under `root` is too small for the run.

    Raises:
        CapacityError: it is; the message says what is needed and what is there.
    """
    need_bytes = shared_memory_bytes(config, policy_bytes=policy_bytes) + SMALL_FILES_BYTES
    status = os.statvfs(root)
    free = status.f_bavail * status.f_frsize
    if free < need_bytes:
        raise CapacityError(
            f"{root} has {free / 2**20:,.0f} MiB free, but this run needs {need_bytes / 2**20:,.0f} MiB there (rings: "
            f"searchers.num_searchers x searchers.ring_capacity_bytes; weights: {weight_copies(config)} x the policy). "
            f"Lower searchers.ring_capacity_bytes, or enlarge it (docker run --shm-size=..., or `mount -o "
            f"remount,size=... {root}`); `tbactl doctor` shows what dead runs left there."
        )


def _take_ownership(path: Path, *, run_directory: Path) -> int:
    """Write the owner file, already locked when it gets its name; returns the descriptor that holds the lock."""
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    owner = {
        "pid": os.getpid(),
        "pid_start_ticks": start_ticks(os.getpid()),
        "run_directory": str(run_directory),
    }
    os.write(descriptor, json.dumps(owner).encode())
    temporary.rename(path)
    return descriptor

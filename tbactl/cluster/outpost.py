"""The far side: a searcher's process on this node, with shared memory of its own that copies the run's."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tbactl import __version__
from tbactl.clock import SystemClock
from tbactl.cluster.messages import Order, Report, Request
from tbactl.cluster.mirror import moved
from tbactl.cluster.policy_files import PolicyFiles
from tbactl.config.layout import SHM_ROOT, ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import ChildFailedError, ConfigError
from tbactl.ipc.control_page import SYNC_EDITS, SYNCED
from tbactl.ipc.ring import RingReader
from tbactl.supervision.placement import Place, child_environment
from tbactl.supervision.process import ChildProcess, ProcessSpec
from tbactl.supervision.reclaim import end_processes_of, reclaim
from tbactl.supervision.shared_memory import SharedMemory, check_free_space, shared_memory_layout
from tbactl.weight_sync.published import PublishedWeights
from tbactl.weight_sync.publisher import publish_copy

# Of a log, in one report: a searcher that floods it must not hold up what matters.
LOG_BYTES = 2**16
# The bridge waits 1.5 s for `close`, then the memory must have been removed.
VANISH_S = 0.5


class Outpost:
    """Runs one searcher, from `launch` to `close`.

    Args:
        order: what to run.
        shm_root: where shared memory is made on this node; what dead runs left there is removed first.

    Raises:
        CapacityError: the node's shared memory is too small.
        ConfigError: the node has another version of tbactl.
    """

    def __init__(self, order: Order, *, shm_root: Path = SHM_ROOT) -> None:
        if order.tbactl_version != __version__:
            raise ConfigError(
                f"this node has tbactl {__version__}, the trainer's machine {order.tbactl_version}; install the same."
            )
        reclaim(shm_root)
        self._order = order
        self._shm_root = shm_root
        self._config = ProcessConfig.model_validate_json(order.process)
        check_free_space(_alone(self._config.run), policy_bytes=order.policy_bytes, root=shm_root)
        self.policy = PolicyFiles(self._config.policy_directory, listing=order.policy)
        self._files = dict(order.files)
        self._memory: SharedMemory | None = None
        # Weights come in beside all else: none may be written behind the back of `close`.
        self._writing = threading.Lock()
        self._child: ChildProcess | None = None

    def launch(self) -> None:
        """Start the searcher.

        Raises:
            CapacityError: its ring does not fit.
            ChildFailedError: the policy is not complete, or the system refuses.
        """
        if self.policy.directory is None:
            raise ChildFailedError("the policy has not arrived completely.")
        shm = shared_memory_layout(self._config.run_directory, root=self._shm_root)
        config = self._config.model_copy(
            update={
                "run_directory": shm.root / "run",
                "shm_directory": shm.root,
                "policy_directory": self.policy.directory,
            }
        )
        self._memory = SharedMemory(
            shm, config=config.run, run_directory=self._config.run_directory, rings=(config.index,)
        )
        self._page = self._memory.page
        self._slot = self._page.searcher(config.index)
        self._slot.set(**self._order.words)
        self._copy_run(self._order.request)
        for name, data in self._files.items():
            if data:
                (shm.root / name).write_bytes(data)
        self._ring = RingReader.open(shm.ring(config.index))
        config.run_directory.mkdir(mode=0o700)
        self._log = _Tail(config.run_directory / "searcher.log")
        self._evaluations = _Tail(config.layout.evaluations)
        path = config.run_directory / "searcher.json"
        path.write_text(config.model_dump_json(), encoding="utf-8")
        spec = ProcessSpec(
            role="searcher",
            index=config.index,
            argv=(sys.executable, "-m", "tbactl.searcher", "--config", str(path)),
            environment=child_environment(Place(environment=_numerics(config.run)), shm_directory=shm.root),
            log_path=self._log.path,
        )
        try:
            self._child = ChildProcess(spec, clock=SystemClock())
        except OSError as error:
            raise ChildFailedError(f"cannot start the searcher: {error}.") from error

    def take_weights(self, published: PublishedWeights, data: memoryview) -> None:
        """Publish weights that have arrived; the searcher itself compares them with their description.

        Raises:
            CapacityError: they do not fit.
        """
        with self._writing:
            if self._memory is not None:
                publish_copy(self._memory.layout.weights, published, write=lambda path: _write(path, data))

    def exchange(self, request: Request) -> Report:
        """Take the run's numbers, and report. What a report holds is not reported again."""
        assert self._memory is not None and self._child is not None
        self._copy_run(request)
        if request.wants_stacks and self._slot.get("pid") == self._child.pid:
            self._child.signal(signal.SIGUSR1)
        exit_code = self._child.poll()
        # Words before records: they must not tell of a record that the report does not hold.
        words = self._slot.snapshot()
        synced = self._slot.get_together(SYNC_EDITS, *SYNCED)
        return Report(
            now_ns=time.monotonic_ns(),
            words=words,
            synced=synced,
            records=self._records() if request.takes_records else [],
            # The last words of a searcher are why it ended.
            log=self._log.read_new(LOG_BYTES if exit_code is None else -1),
            evaluations=self._evaluations.read_new_lines(),
            files=self._changed_files(),
            exit_code=exit_code,
        )

    def close(self) -> None:
        """End the searcher if it lives, and remove the shared memory. Calling it again does nothing."""
        self.policy.discard()
        if self._memory is None:
            return
        if self._child is not None:
            self._child.kill()
            self._ring.close()
        end_processes_of(self._memory.layout.root, limit_s=VANISH_S)
        with self._writing:
            self._memory.remove()
            self._memory = None

    def _copy_run(self, request: Request) -> None:
        by_ns = time.monotonic_ns() - request.now_ns
        self._page.supervisor.set(**moved(request.supervisor, by_ns=by_ns))
        self._page.trainer().set(**moved(request.trainer, by_ns=by_ns))

    def _records(self) -> list[bytes]:
        # Not more than were there: the searcher may write as fast as they are read.
        stats = self._ring.stats
        found = (self._ring.try_read() for _ in range(stats.num_written - stats.num_read))
        return [record for record in found if record is not None]

    def _changed_files(self) -> dict[str, bytes]:
        assert self._memory is not None
        changed = {}
        for name, known in self._files.items():
            path = self._memory.layout.root / name
            data = path.read_bytes() if path.is_file() else b""
            if data != known:
                changed[name] = data
        self._files |= changed
        return changed


class _Tail:
    """What has been appended to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read_new(self, limit: int) -> bytes:
        """At most `limit` bytes; -1: all."""
        data = self._read(limit)
        self._offset += len(data)
        return data

    def read_new_lines(self) -> bytes:
        """Whole lines."""
        data = self._read(-1)
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        return lines

    def _read(self, limit: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""


def _alone(config: RunConfig) -> RunConfig:
    """The run with this searcher only: what its node must have room for."""
    return config.model_copy(update={"searchers": config.searchers.model_copy(update={"num_searchers": 1})})


def _numerics(config: RunConfig) -> Mapping[str, str]:
    """Ray sets OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES to what it gave the actor."""
    hidden = {} if config.searchers.ray_resources.get("GPU") else {"CUDA_VISIBLE_DEVICES": ""}
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", **hidden}


def _write(path: Path, data: memoryview) -> None:
    with path.open("wb") as file:
        # Reserve first: a full tmpfs must be an error here.
        os.posix_fallocate(file.fileno(), 0, max(1, len(data)))
        file.write(data)

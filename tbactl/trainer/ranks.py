"""Several trainer ranks that act as one: rank 0 gives commands, the others follow. Bytes and numbers, never pickle.

A command is a short JSON document and a blob of bytes, broadcast as uint8 tensors over gloo, whatever device the ranks
compute on: waiting for the next command must not occupy an accelerator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from tbactl.config.layout import ProcessConfig
from tbactl.errors import ChildFailedError

POLL_S = 0.001
LOOPBACK = "lo"
RENDEZVOUS_FILE = "trainer-ranks"


def _arrival(rank: int) -> str:
    """Key that says that a rank has come to the meeting."""
    return f"tbactl/arrived/{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What rank 0 asks of all ranks."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""


class RankGroup:
    """The trainer's processes, all on one machine. They need no launcher and no port.

    They meet in a file of the run's shared-memory directory, which only its owner can enter, and gloo talks over the
    loopback interface: nothing of a run can be reached from outside. A process group that exists already is used as it
    is.

    Args:
        config: of this rank.
        device: where it computes; decides the backend of gradients (gloo or NCCL).

    Raises:
        ChildFailedError: not all ranks came in time.
    """

    def __init__(self, config: ProcessConfig, *, device: torch.device) -> None:
        self.rank = config.index
        self.size = config.run.trainer.num_ranks
        self._is_ours = not dist.is_initialized()
        backend = "nccl" if device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=config.run.supervision.progress_timeout_s)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        store = self._store(config)
        store.set(_arrival(self.rank), "1")
        try:
            if self._is_ours:
                dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout)
            # Rank 0 may rest for longer than a collective may take: its silence is bounded by the supervisor, which
            # ends a rank 0 that stands still, and by the kernel, which closes the connection of one that dies.
            commands = dist.new_group(backend="gloo", timeout=timedelta(days=365))
        except (RuntimeError, TimeoutError) as error:
            missing = [str(rank) for rank in range(self.size) if not store.check([_arrival(rank)])]
            whom = f"rank {', '.join(missing)} did not come" if missing else "all came, but not all could connect"
            raise ChildFailedError(
                f"trainer rank {self.rank}: the {self.size} ranks did not meet within {timeout.total_seconds():g} s "
                f"(supervision.progress_timeout_s); {whom}: {error}"
            ) from error
        assert isinstance(commands, dist.ProcessGroup)
        self._commands = commands

    def _store(self, config: ProcessConfig) -> Store:
        if self.size == 1:
            return HashStore()
        store = FileStore(str(config.shm.root / RENDEZVOUS_FILE), self.size)
        store.set_timeout(timedelta(seconds=config.run.supervision.start_timeout_s))
        return store

    def send(self, command: Command) -> None:
        """Give a command to all other ranks. Rank 0 only; it then carries the command out itself."""
        assert self.rank == 0
        if self.size == 1:
            return
        header = msgspec.json.encode({"name": command.name, "arguments": command.arguments})
        sizes = torch.tensor([len(header), len(command.blob)])
        dist.broadcast(sizes, 0, group=self._commands)
        payload = torch.frombuffer(bytearray(header + command.blob), dtype=torch.uint8)
        dist.broadcast(payload, 0, group=self._commands)

    def receive(self, *, while_waiting: Callable[[], object]) -> Command:
        """The next command of rank 0. `while_waiting` is called again and again until it comes."""
        assert self.rank > 0
        sizes = torch.zeros(2, dtype=torch.long)
        work = dist.broadcast(sizes, 0, group=self._commands, async_op=True)
        assert work is not None
        while not work.is_completed():
            while_waiting()
            time.sleep(POLL_S)
        work.wait()
        num_header, num_blob = sizes.tolist()
        payload = torch.zeros(num_header + num_blob, dtype=torch.uint8)
        dist.broadcast(payload, 0, group=self._commands)
        data = payload.numpy().tobytes()
        document = msgspec.json.decode(data[:num_header])
        return Command(name=document["name"], arguments=document["arguments"], blob=data[num_header:])

    def agree(self, wish: bool, /) -> bool:
        """What rank 0 wishes, on all ranks."""
        if self.size == 1:
            return wish
        answer = torch.tensor([int(wish)])
        dist.broadcast(answer, 0, group=self._commands)
        return bool(answer.item())

    def add(self, values: torch.Tensor) -> None:
        """Sum a small tensor over all ranks, in place. It travels through the CPU: gloo takes nothing else."""
        if self.size > 1:
            on_cpu = values.cpu()
            dist.all_reduce(on_cpu, group=self._commands)
            values.copy_(on_cpu)

    def any(self, wish: bool, /) -> bool:
        """Whether any rank wishes it, on all ranks."""
        total = torch.tensor([int(wish)])
        self.add(total)
        return bool(total.item())

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self._commands)

    def close(self) -> None:
        """Leave, unless whoever started this process had entered before."""
        if self._is_ours:
            dist.destroy_process_group()

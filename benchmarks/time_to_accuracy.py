"""Time to accuracy: asynchronous, synchronous, and TRL. `python -m benchmarks.time_to_accuracy RESULTS`.

Three contestants learn the problems of recipe `gsm8k` on the cores that this command has, one after the other:

    async   tbactl run gsm8k
    sync    tbactl run gsm8k-sync: the same objective, searcher and trainer taking turns
    trl     TRL's GRPOTrainer, settings in `trl_runner.py`

Equal for all: start policy, stream of training problems (of each seed), prompts and completions of a step, sampling,
reward, and the seconds of training (`--budget-minutes`). These count from the moment when everything is loaded; what
comes before is the start-up, shown apart. Weights are saved within the time: TRL writes the weights alone, tbactl its
whole checkpoints, every second step. They are evaluated afterwards, all by tbactl's evaluation (greedy, on the same
held-out problems), so no evaluation takes anybody's time.

RESULTS keeps one JSON file for each finished run, so that the command can be stopped and called again; a run that has
failed is tried again then. One that was kept from another machine, commit or version of a package is refused, as one
of other terms is. At the end it prints the tables and writes `time_to_accuracy.json`, `.md` and `.svg`. The
levels to reach are, seed by seed, shares of what TRL has gained at the end of its time. The recipe's problems
(`--difficulty easy`) are learned within a few steps; with `all` accuracy rises for longer.

A run takes its budget, about 20 s to start and, for the evaluations, about 6 s for each of the nine points.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.accuracy_curves import PEER, Outcome
from benchmarks.accuracy_report import PACKAGES, document, draw, tables
from benchmarks.accuracy_runs import RECIPES, run
from benchmarks.measuring import differences, machine
from benchmarks.trl_runner import key_and_value
from tbactl.supervision.atomic import write_text

CONTESTANTS = (PEER, *RECIPES)


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="directory of results, made if missing")
    parser.add_argument("--contestants", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget-minutes", type=float, default=1.5, help="of training, for each run")
    parser.add_argument("--num-prompts", type=int, default=512, help="held-out problems of an evaluation")
    parser.add_argument("--difficulty", default="easy", choices=("easy", "all"), help="of the problems")
    parser.add_argument(
        "--trl",
        action="append",
        default=[],
        type=key_and_value,
        metavar="KEY=VALUE",
        help="a setting of GRPOConfig",
    )
    arguments = parser.parse_args()
    # Seeds outermost: a first full comparison is there early, and what else the machine does meets all alike.
    wanted = [
        Outcome(
            contestant=contestant,
            seed=seed,
            budget_s=60 * arguments.budget_minutes,
            num_prompts=arguments.num_prompts,
            difficulty=arguments.difficulty,
            settings=dict(arguments.trl) if contestant == PEER else {},
        )
        for seed in arguments.seeds
        for contestant in arguments.contestants
    ]
    outcomes = list(measure(wanted, results=arguments.results.resolve()))
    report = arguments.results / "time_to_accuracy"
    write_text(report.with_suffix(".json"), json.dumps(document(outcomes), indent=2) + "\n")
    write_text(report.with_suffix(".md"), tables(outcomes))
    draw(outcomes, report.with_suffix(".svg"))
    print(f"\n{tables(outcomes)}\nwritten: {report}.json, .md, .svg")


def measure(wanted: Sequence[Outcome], *, results: Path) -> Iterator[Outcome]:
    """The outcome of every run, from its file or from a run now."""
    results.mkdir(parents=True, exist_ok=True)
    for number, blank in enumerate(wanted, start=1):
        file = results / f"{blank.contestant}-seed{blank.seed}.json"
        here = machine(*PACKAGES)
        if file.exists():
            outcome = Outcome.from_json(json.loads(file.read_text(encoding="utf-8")))
            if outcome.terms != blank.terms:
                sys.exit(f"{file} holds a run of {outcome.terms}, not {blank.terms}: choose another directory.")
            if changed := differences(outcome.machine, here):
                sys.exit(f"{file} holds a run of {changed}: choose another directory, or remove the old results.")
        else:
            print(f"[{number}/{len(wanted)}] {blank.contestant}, seed {blank.seed} ...", end=" ", flush=True)
            outcome = replace(run(blank, directory=results / file.stem), machine=here)
            if not outcome.problem:
                write_text(file, json.dumps(asdict(outcome), indent=2) + "\n")
            print(_line(outcome), flush=True)
        yield outcome


def _line(outcome: Outcome) -> str:
    if outcome.problem:
        return outcome.problem
    first, last = outcome.points[0], outcome.points[-1]
    return (
        f"{first.accuracy:.3f} -> {last.accuracy:.3f} in {last.time_s:.0f} s, {outcome.num_steps} steps, "
        f"{last.generated_tokens:,} tokens; start-up {outcome.start_up_s:.0f} s"
    )


if __name__ == "__main__":
    main()

"""A long run that must hold no more at its end than at its beginning.

    python -m benchmarks.soak RESULTS [--minutes 60] [--steps-per-second 5] [--set KEY=VALUE]

`tbactl run` with two searchers in async mode over real rings, buffer, weight sync, evaluations and checkpoints; only
engine, learner and task are fakes, which work at a given rate and leave the processor idle. Memory, file descriptors
and threads of each process, shared memory and files are sampled from outside. Written to RESULTS: soak.csv, soak.png
and soak.md with the verdicts.

Exit code 0: nothing grows beyond what is allowed; 1: something does, or the run failed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.driver import run_recipe
from benchmarks.soak_figure import draw
from benchmarks.soak_sampling import HISTORY, Sample, Sampler
from benchmarks.soak_verdict import table, verdicts

NUM_SAMPLES = 60
MIN_PERIOD_S, MAX_PERIOD_S = 0.5, 60.0

RECIPE = """\
name = "soak"
runs_dir = "{runs}"

[task]
kind = "fake"

[policy]
path = "fake"

[searchers]
num_searchers = 2
engine = "fake"
engine_options = {{ step_seconds = {engine_step:.6f} }}
num_completions = 4
max_prompt_tokens = 32
max_new_tokens = 8
max_concurrent_groups = 4
ring_capacity_bytes = 65536
temperature = 1.0

[trainer]
kind = "fake"
max_steps = 1000000000
prompts_per_step = 4
completions_per_prompt = 4
# So little is learned that completions stay as varied as they were, and the buffer as full.
options = {{ step_seconds = {learner_step:.6f}, learning_rate = 1e-6 }}

[replay]
initial_trajectories = 64
capacity = 1000

[evaluation]
num_prompts = 20
period = {evaluation_period}

[checkpoint]
period = {checkpoint_period}

[supervision]
evaluation_timeout_s = 60
"""


def recipe(runs: Path, *, steps_per_second: float) -> str:
    """The run's recipe: checkpoints every five seconds, evaluations every ten."""
    return RECIPE.format(
        runs=runs,
        engine_step=0.1 / steps_per_second,
        learner_step=1.0 / steps_per_second,
        checkpoint_period=max(1, round(5 * steps_per_second)),
        evaluation_period=2 * max(1, round(5 * steps_per_second)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, sample, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--steps-per-second", type=float, default=5.0)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    results: Path = options.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    file = results / "soak.toml"
    file.write_text(recipe(results / "runs", steps_per_second=options.steps_per_second), encoding="utf-8")
    limit_s = 60 * options.minutes
    sampler = Sampler(results / "runs", period_s=min(MAX_PERIOD_S, max(MIN_PERIOD_S, limit_s / NUM_SAMPLES)))

    def is_enough() -> bool:
        if (sample := sampler.look()) is not None:
            print(progress_line(sample), flush=True)
        return sampler.elapsed_s > limit_s

    finished = run_recipe(str(file), overrides=options.overrides, profile="cpu", is_enough=is_enough)
    return report(sampler.samples, results=results, problem=finished.problem)


def progress_line(sample: Sample) -> str:
    """One sample for people who wait."""
    memory = "  ".join(f"{name} {sample.values[f'rss {name}']:.0f}" for name in sample.pids)
    return f"{sample.seconds / 60:6.1f} min  step {sample.step:>6}  MiB: {memory}"


def report(samples: Sequence[Sample], *, results: Path, problem: str) -> int:
    """Write and print what was found; the exit code."""
    if problem:
        print(f"the run failed: {problem}", file=sys.stderr)
        return 1
    try:
        found = verdicts(samples)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    write_csv(samples, file=results / "soak.csv")
    draw(samples, file=results / "soak.png")
    replaced = sorted(name for name in samples[0].pids if len({sample.pids[name] for sample in samples}) > 1)
    growing = [verdict.quantity for verdict in found if verdict.word == "growing"]
    untold = [verdict.quantity for verdict in found if verdict.word == "cannot be told"]
    lines = [
        f"{samples[-1].seconds / 60:.1f} minutes of training, {samples[-1].step:,} steps, {len(samples)} samples; "
        f"growth over the time after the first quarter.",
        table(found),
        f"history is what grows by design: {', '.join(HISTORY)}.",
        *(f"{name} was restarted: its samples are of several processes." for name in replaced),
        *([f"cannot be told, run longer: {', '.join(untold)}."] if untold else []),
        f"GROWING: {', '.join(growing)}" if growing else "nothing grows beyond what is allowed",
    ]
    text = "\n\n".join(lines) + "\n"
    print(f"\n{text}")
    (results / "soak.md").write_text(text.replace(lines[1], f"```\n{lines[1]}\n```"), encoding="utf-8")
    return 1 if growing or replaced else 0


def write_csv(samples: Sequence[Sample], *, file: Path) -> None:
    """One row for each sample."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["seconds", "step", *samples[0].values])
        for sample in samples:
            writer.writerow([round(sample.seconds, 3), sample.step, *(round(v, 4) for v in sample.values.values())])


if __name__ == "__main__":
    sys.exit(main())

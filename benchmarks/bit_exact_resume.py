"""Is a run that was killed and resumed, bit for bit, the run that was not?

    python -m benchmarks.bit_exact_resume [--points 10] [--models 3] [--seed 0]

In `mode = "sync"` on the CPU, with the real processes, rings, checkpoints and supervisor: one run of 2n steps without
interruption, then one for each kill point. There kill -9 meets the trainer, the supervisor or a searcher at a random
moment, every other time in the middle of a checkpoint; the run is resumed (a searcher's death the supervisor heals) and
comes to its end. Printed for each: who, when, from where it went on, and checksums of weights, optimizer, buffer,
trainer state and metrics. The last `--models` points train a real policy with DeepSpeed and transformers, the others a
fake one. Exit code 0 only where all checksums are those of the uninterrupted run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.resume_digest import PARTS, digests
from benchmarks.resume_runs import KillPoint, RunAttempt, Strike

VICTIMS = ("trainer-0", "supervisor", "searcher-1")
PERIOD = 2

FAKE = """
mode = "sync"
[task]
kind = "fake"
[policy]
path = "fake"
[searchers]
num_searchers = 2
engine = "fake"
engine_options = {{ step_seconds = 0.002 }}
num_completions = 4
max_prompt_tokens = 32
max_new_tokens = 8
max_concurrent_groups = 4
ring_capacity_bytes = 65_536
temperature = 1.0
[trainer]
kind = "fake"
max_steps = {steps}
prompts_per_step = 4
completions_per_prompt = 4
options = {{ step_seconds = 0.1 }}
"""

REAL = """
mode = "sync"
[task]
kind = "math"
options = {{ difficulty = "easy", max_new_tokens = 16 }}
[policy]
path = "task:gsm8k-tiny"
[searchers]
num_searchers = 2
engine = "transformers"
num_completions = 4
max_prompt_tokens = 200
max_new_tokens = 16
max_concurrent_groups = 2
ring_capacity_bytes = 1_048_576
[trainer]
max_steps = {steps}
prompts_per_step = 2
completions_per_prompt = 4
learning_rate = 1e-4
lr_schedule = "linear"
micro_batch_tokens = 2048
"""

COMMON = """
[replay]
on_policy_fraction = 1.0
capacity = 1000
initial_trajectories = 8
[sync]
period = 1
[checkpoint]
period = {period}
[logging]
tensorboard = false
[supervision]
restart_backoff_s = 0.1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is trained."""

    name: str
    recipe: str
    num_steps: int
    """2n."""
    bound_s: float
    """Longest time from the start of a run to its end."""

    def write(self, directory: Path) -> Path:
        """The recipe as a file; its runs are made beside it."""
        directory.mkdir()
        path = directory / f"{self.name}.toml"
        settings = (self.recipe + COMMON).format(steps=self.num_steps, period=PERIOD)
        path.write_text(f'runs_dir = "{directory / "runs"}"\n{settings}', encoding="utf-8")
        return path


FAKES = Kind(name="fake", recipe=FAKE, num_steps=20, bound_s=180.0)
MODELS = Kind(name="model", recipe=REAL, num_steps=12, bound_s=600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A kill point and what came of it."""

    point: KillPoint
    strike: Strike
    resumed_step: int | None
    """None: the run went on by itself."""
    digests: dict[str, str]


def uninterrupted(kind: Kind, *, directory: Path) -> dict[str, str]:
    """The digests to compare with."""
    recipe = kind.write(directory)
    with RunAttempt(directory, arguments=[str(recipe)], attempt=1) as run:
        _require(run, exit_code=run.wait(bound_s=kind.bound_s))
        return digests(run.root, step=kind.num_steps)


def interrupted(kind: Kind, point: KillPoint, *, directory: Path) -> Outcome:
    """Run, kill, resume, finish."""
    recipe = kind.write(directory)
    with RunAttempt(directory, arguments=[str(recipe)], attempt=1) as run:
        strike = run.kill(point, bound_s=kind.bound_s)
        exit_code = run.wait(bound_s=kind.bound_s)
        root = run.root
    resumed_step = None
    if point.victim.startswith("searcher"):
        _require(run, exit_code=exit_code)
    else:
        resumed_step = int((root / "checkpoints" / "latest").resolve().name.removeprefix("step_"))
        with RunAttempt(directory, arguments=["--resume", str(root)], attempt=2) as again:
            _require(again, exit_code=again.wait(bound_s=kind.bound_s))
    return Outcome(point=point, strike=strike, resumed_step=resumed_step, digests=digests(root, step=kind.num_steps))


def _require(run: RunAttempt, *, exit_code: int) -> None:
    if exit_code:
        raise RuntimeError(f"a run that should finish ended with {exit_code}:\n{run.output[-2000:]}")


def check(kind: Kind, points: list[KillPoint], *, directory: Path) -> bool:
    """Print what becomes of each point; whether all are as the uninterrupted run."""
    if not points:
        return True
    expected = uninterrupted(kind, directory=directory / f"{kind.name}-whole")
    shown = "  ".join(f"{part} {expected[part]}" for part in PARTS)
    print(f"{kind.name}, {kind.num_steps} steps without interruption: {shown}", flush=True)
    all_equal = True
    for point in points:
        start_s = time.monotonic()
        outcome = interrupted(kind, point, directory=directory / f"{kind.name}-{point.number}")
        all_equal &= outcome.digests == expected
        print(line_of(outcome, expected=expected, seconds=time.monotonic() - start_s), flush=True)
    return all_equal


def line_of(outcome: Outcome, *, expected: dict[str, str], seconds: float) -> str:
    """One kill point in words."""
    strike = outcome.strike
    writing = f", {strike.half_written} half written" if strike.half_written else ""
    went_on = "restarted in the run" if outcome.resumed_step is None else f"resumed from step {outcome.resumed_step}"
    different = [part for part in PARTS if outcome.digests[part] != expected[part]]
    verdict = f"DIFFERENT: {', '.join(different)}" if different else "identical"
    sums = " ".join(f"{part}={outcome.digests[part][:12]}" for part in PARTS)
    return (
        f"{outcome.point.number:>3}  {outcome.point.victim} killed at step {strike.step} ({strike.phase}{writing}), "
        f"{went_on}: {verdict}  {sums}  [{seconds:.0f} s]"
    )


def draw_points(kind: Kind, numbers: range, *, seed: int) -> list[KillPoint]:
    """Kill points of a kind of run."""
    return [
        KillPoint.draw(number, seed=seed, victims=VICTIMS, first_step=PERIOD, last_step=kind.num_steps - 2 * PERIOD)
        for number in numbers
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the check; 0: all identical."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10, help="kill points in all")
    parser.add_argument("--models", type=int, default=3, help="of these, so many with a real policy")
    parser.add_argument("--seed", type=int, default=0, help="of the points")
    options = parser.parse_args(arguments)
    num_fakes = max(0, options.points - options.models)
    with tempfile.TemporaryDirectory(prefix="tbactl-resume-") as directory:
        fakes = draw_points(FAKES, range(num_fakes), seed=options.seed)
        models = draw_points(MODELS, range(num_fakes, options.points), seed=options.seed)
        is_right = check(FAKES, fakes, directory=Path(directory))
        is_right &= check(MODELS, models, directory=Path(directory))
    print("all identical to the run without interruption" if is_right else "NOT identical", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())

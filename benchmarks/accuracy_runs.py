"""One run of one contestant of `time_to_accuracy.py`: trained in a process of its own, then evaluated in another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.accuracy_curves import PEER, Outcome, Point
from benchmarks.driver import run_recipe
from benchmarks.policy_accuracy import START
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.dashboard.tail import JsonlTail
from tbactl.ipc.child import die_with_parent

RECIPES = {"async": "gsm8k", "sync": "gsm8k-sync"}
# Shares of the budget after which weights are evaluated, closer together where accuracy rises.
MOMENTS = (0.04, 0.08, 0.13, 0.2, 0.3, 0.45, 0.65, 1.0)
CHECKPOINT_PERIOD = 2
SHARED = {
    "trainer.max_steps": 1_000_000,
    "evaluation.num_prompts": 0,
    "checkpoint.period": CHECKPOINT_PERIOD,
    "checkpoint.keep_every": CHECKPOINT_PERIOD,
    "logging.tensorboard": "false",
    # A busy machine is no reason to give up.
    "supervision.start_timeout_s": 900.0,
}
# For what a child does beside training.
GRACE_S = 900.0
ERROR_LINES = 15

# Optimizer step, seconds of training at its end, tokens generated until then.
Step = tuple[int, float, int]
Trained = tuple[float, list[Step], dict[int, Path]]
"""Start-up in seconds, all steps, and the directories of the weights that were saved, by step."""


def run(blank: Outcome, *, directory: Path) -> Outcome:
    """Train and evaluate one contestant; leaves small files only."""
    shutil.rmtree(directory, ignore_errors=True)
    train = train_trl if blank.contestant == PEER else train_tbactl
    try:
        start_up_s, steps, weights = train(blank, directory=directory)
        chosen = moments(steps, weights, budget_s=blank.budget_s)
        accuracies = evaluate(
            [weights[step] for step, _, _ in chosen],
            blank=blank,
            output=directory / "accuracies.json",
        )
    except RuntimeError as error:
        return Outcome(**blank.terms, contestant=blank.contestant, seed=blank.seed, problem=str(error))
    points = [Point(step=0, time_s=0.0, generated_tokens=0, accuracy=accuracies[START])]
    points += [
        Point(step=step, time_s=time_s, generated_tokens=tokens, accuracy=accuracies[str(weights[step])])
        for step, time_s, tokens in chosen
    ]
    for heavy in (directory / "weights", *directory.glob("runs/*/checkpoints")):
        shutil.rmtree(heavy, ignore_errors=True)
    return Outcome(
        **blank.terms,
        contestant=blank.contestant,
        seed=blank.seed,
        start_up_s=start_up_s,
        num_steps=len(steps),
        points=points,
    )


def moments(steps: Sequence[Step], weights: dict[int, Path], *, budget_s: float) -> list[Step]:
    """The steps to evaluate: after each share of the budget the first one whose weights were saved, and the last one.

    Raises:
        RuntimeError: nothing was saved.
    """
    saved = [step for step in steps if step[0] in weights]
    if not saved:
        raise RuntimeError("no weights were saved within the time")
    chosen = {saved[-1]}
    for share in MOMENTS:
        chosen.update([step for step in saved if step[1] >= share * budget_s][:1])
    return sorted(chosen)


def train_tbactl(blank: Outcome, *, directory: Path) -> Trained:
    """`tbactl run`, stopped when its time is over."""
    runs = directory / "runs"
    settings = SHARED | {
        "seed": blank.seed,
        "name": f'"{blank.contestant}"',
        "runs_dir": json.dumps(str(runs)),
        "task.options.difficulty": f'"{blank.difficulty}"',
    }
    begin_s = time.time()
    finished = run_recipe(
        RECIPES[blank.contestant],
        profile="cpu",
        overrides=[f"{key}={value}" for key, value in settings.items()],
        is_enough=_time_is_over(runs, budget_s=blank.budget_s),
    )
    if finished.problem or finished.directory is None:
        raise RuntimeError(finished.problem or "no run directory")
    layout = RunLayout(finished.directory)
    steps = finished_steps(_lines(layout.metrics))
    weights = {number: CheckpointLayout(layout.checkpoint(number)).policy for number, _, _ in steps}
    return began_s(layout) - begin_s, steps, {step: path for step, path in weights.items() if path.is_dir()}


def _time_is_over(runs: Path, *, budget_s: float) -> Callable[[], bool]:
    tails: dict[Path, JsonlTail] = {}

    def is_over() -> bool:
        for file in runs.glob("*/metrics.jsonl"):
            tails.setdefault(file, JsonlTail(file))
        return any(line["time_s"] >= budget_s for tail in tails.values() for line in tail.read_new())

    return is_over


def began_s(layout: RunLayout) -> float:
    """When a run began to train, as a time of day in seconds."""
    running = next(line for line in _lines(layout.events) if line["details"].get("state") == "RUNNING")
    return datetime.fromisoformat(running["time"]).timestamp()


def finished_steps(lines: Sequence[dict[str, Any]]) -> list[Step]:
    """What each step of a run needed; tokens are those of the completions that had arrived at the trainer."""
    steps: list[Step] = []
    num_completions, num_tokens = 0.0, 0.0
    for line in lines:
        metrics = line["metrics"]
        arrived = metrics["intake/trajectories/total"]
        num_tokens += (arrived - num_completions) * metrics.get("intake/completion_tokens/mean", 0.0)
        num_completions = arrived
        steps.append((line["step"], line["time_s"], round(num_tokens)))
    return steps


def train_trl(blank: Outcome, *, directory: Path) -> Trained:
    """`trl_runner.py`, which ends by itself."""
    save_at = [str(share * blank.budget_s) for share in MOMENTS]
    settings = [part for name, value in blank.settings.items() for part in ("--set", f"{name}={value}")]
    begin_s = time.time()
    _child(
        "benchmarks.trl_runner",
        str(directory),
        *("--seed", str(blank.seed), "--difficulty", blank.difficulty, "--budget-s", str(blank.budget_s)),
        *("--save-at", *save_at, *settings),
        timeout_s=blank.budget_s + GRACE_S,
    )
    steps = [(line["step"], line["time_s"], line["generated_tokens"]) for line in _lines(directory / "steps.jsonl")]
    weights = {int(path.name.removeprefix("step_")): path for path in (directory / "weights").iterdir()}
    began = json.loads((directory / "began.json").read_text(encoding="utf-8"))["wall_s"]
    return began - begin_s, steps, weights


def evaluate(weights: Sequence[Path], *, blank: Outcome, output: Path) -> dict[str, float]:
    """Accuracy by directory, and of the start policy."""
    options = ("--num-prompts", str(blank.num_prompts), "--difficulty", blank.difficulty)
    _child("benchmarks.policy_accuracy", *options, str(output), *map(str, weights), timeout_s=GRACE_S)
    return json.loads(output.read_text(encoding="utf-8"))


def _child(module: str, *arguments: str, timeout_s: float) -> None:
    """Run a module in a process of its own, on all cores.

    Raises:
        RuntimeError: it fails or takes too long; with the end of what it said.
    """
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "TOKENIZERS_PARALLELISM": "false"}
    try:
        finished = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"HF_HUB_OFFLINE": "1", **threads, **os.environ},
            preexec_fn=die_with_parent,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{module} was not done after {timeout_s:.0f} s") from None
    if finished.returncode:
        said = finished.stdout.decode(errors="replace").strip().splitlines()[-ERROR_LINES:]
        raise RuntimeError("\n".join((f"{module}: exit code {finished.returncode}", *said)))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

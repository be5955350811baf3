"""Costs as a finished run has measured them, from the files in its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from tbactl.config.derived import batch_trajectories, searchers_here
from tbactl.config.layout import RunLayout
from tbactl.config.run_record import read_run_config
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError
from tbactl.planning.hardware import CostsSection, Hardware, MachineSection, WorkloadSection
from tbactl.planning.processors import threads_of

GIB = 2**30
MIN_STEPS = 3
# Of sampled completions, for the spread of a group's time.
MIN_LENGTHS = 20
# A searcher idle for more than this share, whose ring is emptier than that, waits for its rewards.
SCORING_IDLE, SCORING_RING_FILL = 0.1, 0.5

Metrics = Mapping[str, float]


def measured_hardware(run_directory: Path) -> Hardware:
    """What a run's metrics say about the machine, the costs and the workload.

    Best measured with as many cores as processes: where they shared cores, times are divided by the share that each
    had if all were busy, which they were not always.

    Raises:
        ConfigError: the run has too few steps, or its files are damaged.
    """
    layout = RunLayout(run_directory)
    run = read_run_config(run_directory)
    try:
        return _measured(layout, run=run)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(
            f"{run_directory}: costs cannot be read from its metrics, evaluations and trajectories: "
            f"{type(error).__name__}: {error}. A file is damaged, or of another version of tbactl; name another run."
        ) from error


def _measured(layout: RunLayout, *, run: RunConfig) -> Hardware:
    steps = steps_of_run(layout)
    if len(steps) < MIN_STEPS:
        raise ConfigError(
            f"{layout.root} has {len(steps)} optimizer steps in metrics.jsonl; at least {MIN_STEPS} are needed to "
            f"measure costs."
        )
    machine = _machine(layout.environment)
    evaluations_s = [float(line["seconds"]) for line in _lines(layout.evaluations) if line.get("seconds")]
    lengths = [int(line["num_tokens"]) for line in _lines(layout.trajectories)]
    return Hardware(
        machine=machine,
        costs=_costs(run, steps, machine=machine, evaluations_s=evaluations_s, lengths=lengths),
        workload=_workload(steps[-1], run=run, steps=steps),
    )


def _costs(
    run: RunConfig, steps: list[Metrics], *, machine: MachineSection, evaluations_s: list[float], lengths: list[int]
) -> CostsSection:
    num_here = searchers_here(run)
    num_processes = run.trainer.num_ranks + num_here
    takes_turns = run.mode == "sync"
    # Times are kept as of a process that has its cores for itself.
    share = min(1.0, machine.cores / num_processes) if machine.cores and not takes_turns else 1.0
    threads = threads_of(
        cores=machine.cores,
        num_ranks=run.trainer.num_ranks,
        num_searchers=num_here,
        takes_turns=takes_turns,
    )
    measured_cores = int(threads[0]) if machine.cores else 1
    # Searchers may have had more cores than the trainer, which `measured_cores` counts.
    of_trainer, of_searcher = (share * number / measured_cores for number in threads)
    if not num_here:
        of_searcher = 1.0
    warm = steps[1:]  # the first step is the first of everything
    load_s = _mean(step["searcher/sync_s/max"] for step in steps if step.get("searcher/sync_s/max", 0.0) > 0.0)
    training_s = [_train_s(step) for step in warm]
    generate_s, score_s = _searching(run, steps, load_s=load_s, evaluations_s=evaluations_s)
    spread = group_spread(lengths, group_size=run.searchers.num_completions)
    costs = CostsSection(
        generate_s=generate_s * of_searcher,
        train_s=fmean(training_s) * run.trainer.num_ranks / batch_trajectories(run) * of_trainer,
        train_spread=round(pstdev(training_s) / fmean(training_s), 3),
        score_s=score_s,
        publish_s=_mean(step["trainer/publish_s/sum"] for step in warm if "trainer/publish_s/sum" in step) * of_trainer,
        load_s=load_s * of_searcher,
        checkpoint_s=_mean(step["trainer/checkpoint_s/sum"] for step in steps if "trainer/checkpoint_s/sum" in step)
        * of_trainer,
        evaluate_s=fmean(evaluations_s) * of_searcher if evaluations_s else None,
        measured_cores=measured_cores,
    )
    if spread is None:
        return costs
    return costs.model_copy(update={"generate_spread": spread.of_longest, "mean_share": spread.mean_share})


class GroupSpread(NamedTuple):
    """How the times of a group's completions differ, in tokens."""

    of_longest: float
    """Standard deviation / mean of the longest one: a group takes as long as that."""
    mean_share: float
    """Mean of all / mean of the longest."""


def group_spread(lengths: Sequence[int], *, group_size: int) -> GroupSpread | None:
    """Of groups of `group_size` completions.

    Exact for draws from the given lengths: the longest is at most x with probability F(x) ^ group_size. None where
    there are too few of them.
    """
    if len(lengths) < MIN_LENGTHS:
        return None
    ordered, count = sorted(lengths), len(lengths)
    weights = [((i + 1) / count) ** group_size - (i / count) ** group_size for i in range(count)]
    mean = sum(length * weight for length, weight in zip(ordered, weights, strict=True))
    variance = sum((length - mean) ** 2 * weight for length, weight in zip(ordered, weights, strict=True))
    if not mean:
        return None
    # Rounding could lead to 0, or above 1.
    mean_share = min(1.0, max(0.001, round(fmean(lengths) / mean, 3)))
    return GroupSpread(of_longest=round(variance**0.5 / mean, 3), mean_share=mean_share)


def _train_s(step: Metrics) -> float:
    others = ("trainer/wait_s/sum", "trainer/publish_s/sum")
    return step["trainer/step_s/sum"] - sum(step.get(name, 0.0) for name in others)


def _searching(
    run: RunConfig, steps: list[Metrics], *, load_s: float, evaluations_s: list[float]
) -> tuple[float, float]:
    """Seconds for a trajectory of a searcher's engine, and of its reward."""
    last = steps[-1]
    num_searchers = run.searchers.num_searchers
    elapsed_s = last["trainer/elapsed_s/value"] * num_searchers
    weights = [step["trainer/step_s/sum"] for step in steps]
    idle = sum(step["searcher/idle/mean"] * weight for step, weight in zip(steps, weights, strict=True)) / sum(weights)
    num_syncs = sum("trainer/publish_s/sum" in step for step in steps[:-1])
    # The evaluation after the last step falls into nobody's step.
    away_s = num_syncs * load_s * num_searchers + sum(evaluations_s[:-1])
    num_completions = max(last["searcher/completions/total"], last["intake/trajectories/total"], 1.0)
    generate_s = max(elapsed_s * (1.0 - idle) - away_s, 1e-3) / num_completions
    ring_fill = fmean(step["searcher/ring_fill/max"] for step in steps)
    is_scoring_bound = run.mode == "async" and idle > SCORING_IDLE and ring_fill < SCORING_RING_FILL
    return generate_s, elapsed_s / num_completions if is_scoring_bound else 0.0


def _workload(last: Metrics, *, run: RunConfig, steps: list[Metrics]) -> WorkloadSection:
    num_prompts, num_groups = last["replay/prompts/value"], last["intake/groups/total"]
    come_again = num_groups > 3 * num_prompts
    num_eligible = last.get("replay/eligible_prompts/value", num_prompts)
    lengths = [step["intake/completion_tokens/mean"] for step in steps if "intake/completion_tokens/mean" in step]
    return WorkloadSection(
        completion_tokens=fmean(lengths) if lengths else None,
        num_prompts=int(num_prompts) if come_again else 0,
        # Where prompts come again they have had several chances.
        trainable_share=1.0 if come_again or not num_prompts else max(0.01, num_eligible / num_prompts),
    )


def _machine(path: Path) -> MachineSection:
    try:
        environment = json.loads(path.read_bytes())
        num_devices, cores = len(environment["gpus"]), len(environment["cores"])
        memory_gib = environment["memory_bytes"] / GIB
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} is damaged or missing: {error}; name a run of this version.") from None
    if num_devices:
        return MachineSection(num_devices=num_devices)
    return MachineSection(cores=cores, memory_gib=round(memory_gib, 1))


def steps_of_run(layout: RunLayout) -> list[Metrics]:
    """Metrics of each optimizer step, those of the last attempt where it was done twice; None is left out."""
    steps: dict[int, Metrics] = {}
    for line in _lines(layout.metrics):
        number = int(line["step"])
        steps = {known: metrics for known, metrics in steps.items() if known < number}
        steps[number] = {name: value for name, value in line["metrics"].items() if value is not None}
    return list(steps.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    # Not splitlines(): a completion may hold other line separators.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            yield json.loads(line)
        except ValueError:
            raise ConfigError(f"{path}:{number}: this is not JSON; the file is damaged.") from None


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0

"""A configuration as a person wants to read it before a run."""

from __future__ import annotations

from collections.abc import Iterator

from tbactl.config.derived import (
    batch_trajectories,
    freshest_staleness,
    largest_group_bytes,
    shared_memory_bytes,
    worst_case_staleness,
)
from tbactl.config.sections import ObjectiveSection, ReplaySection, RunConfig

MIB = 2**20


def plan_lines(config: RunConfig) -> Iterator[str]:
    """A dozen lines: who does what, and the numbers that follow."""
    searchers, trainer, objective, replay = config.searchers, config.trainer, config.objective, config.replay
    yield f"  run        {config.name}, mode {config.mode}, seed {config.seed}"
    yield f"  task       {config.task.kind} {_options(config.task.options)}"
    yield f"  policy     {config.policy.path}, {config.policy.dtype}"
    yield (
        f"  searchers  {searchers.num_searchers} x {searchers.engine}: {searchers.num_completions} completions a "
        f"prompt, {searchers.max_new_tokens} new tokens, temperature "
        f"{_moving(searchers.temperature, searchers.temperature_final, searchers.temperature_steps)}"
    )
    yield (
        f"  trainer    {trainer.num_ranks} x {trainer.kind}, ZeRO {trainer.zero_stage}: {trainer.max_steps} steps of "
        f"{trainer.prompts_per_step} prompts x {trainer.completions_per_prompt} = {batch_trajectories(config)} "
        f"trajectories, learning rate {trainer.learning_rate:g} ({trainer.lr_schedule})"
    )
    beta = _moving(objective.beta, objective.beta_final, objective.beta_steps)
    yield f"  objective  {objective.kind}, beta {beta}{_temperatures(objective)}"
    yield (
        f"  replay     {replay.capacity} trajectories, training starts at {replay.initial_trajectories}, "
        f"{_drawn(replay)}{_bounds(replay)}"
    )
    yield (
        f"  staleness  the newest data is at most {freshest_staleness(config)} steps old at a sync (every "
        f"{config.sync.period}), the oldest {worst_case_staleness(config)}"
    )
    yield f"  evaluation {_evaluation(config)}"
    yield (
        f"  /dev/shm   {shared_memory_bytes(config, policy_bytes=0) / MIB:.0f} MiB for rings (largest group "
        f"{largest_group_bytes(config) / MIB:.2f} MiB) and three times the policy"
    )


def _temperatures(objective: ObjectiveSection) -> str:
    gamma = objective.reference_temperature, objective.reference_temperature_final
    target = objective.target_temperature, objective.target_temperature_final
    shown = "" if gamma == (1.0, None) else f", gamma {_moving(*gamma, objective.reference_temperature_steps)}"
    return shown if target == (1.0, None) else f"{shown}, T {_moving(*target, objective.target_temperature_steps)}"


def _moving(first: float, final: float | None, num_steps: int) -> str:
    return f"{first:g}" if final is None else f"{first:g} -> {final:g} over {num_steps} steps"


def _drawn(replay: ReplaySection) -> str:
    if replay.sampler != "mixture":
        return f"drawn by {replay.sampler}"
    fraction = _moving(replay.on_policy_fraction, replay.on_policy_fraction_final, replay.on_policy_fraction_steps)
    return f"on-policy fraction {fraction}, else {replay.prioritization}"


def _bounds(replay: ReplaySection) -> str:
    low, high = replay.min_samples_per_insert, replay.max_samples_per_insert
    if not low and high is None:
        return ""
    return f"; each trained on {low:g} to {'any number of' if high is None else f'{high:g}'} times on average"


def _options(options: dict[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def _evaluation(config: RunConfig) -> str:
    evaluation = config.evaluation
    if not evaluation.num_prompts:
        return "none"
    when = f"every {evaluation.period} steps, " if evaluation.period else ""
    target = f"; target {evaluation.target:g}" if evaluation.target is not None else ""
    return f"{evaluation.num_prompts} held-out prompts, {when}before and after{target}"

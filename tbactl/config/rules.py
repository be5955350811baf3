"""What settings must satisfy together. One small function a rule; all of them are asked, all violations reported.

A rule yields `Problem`s whose path is the setting that the user most likely wants to change. Rules in ERRORS refuse the
run; those in WARNINGS are printed and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tbactl.config.derived import batch_trajectories, group_tokens, largest_group_bytes, smallest_ring_bytes
from tbactl.config.problems import Problem
from tbactl.config.schedules import schedule_problems
from tbactl.config.sections import RunConfig, SftConfig

Rule = Callable[[RunConfig], Iterator[Problem]]


def _problem(config: RunConfig | SftConfig, setting: str, rest: str) -> Problem:
    value: Any = config
    for part in setting.split("."):
        value = getattr(value, part)
    return Problem(tuple(setting.split(".")), f"{setting} = {value} {rest}")


def groups_hold_a_training_group(config: RunConfig) -> Iterator[Problem]:
    """On-policy, every prompt is trained on once, with the completions of one group: S >= K."""
    samples, used = config.searchers.num_completions, config.trainer.completions_per_prompt
    if config.mode == "sync" and samples < used:
        yield _problem(
            config,
            "searchers.num_completions",
            f"must be at least trainer.completions_per_prompt = {used} when mode = sync: a prompt is generated once.",
        )


def evaluations_fall_on_syncs(config: RunConfig) -> Iterator[Problem]:
    """A searcher evaluates the weights it holds, so evaluations happen at syncs."""
    period, sync = config.evaluation.period, config.sync.period
    if period % sync:
        yield _problem(
            config,
            "evaluation.period",
            f"must be a multiple of sync.period = {sync}: searchers hold new weights only after a sync; "
            f"use {max(sync, period - period % sync)} or {period - period % sync + sync}.",
        )


def buffer_can_start(config: RunConfig) -> Iterator[Problem]:
    """The buffer must be able to hold what training waits for."""
    if config.replay.initial_trajectories > config.replay.capacity:
        yield _problem(
            config,
            "replay.initial_trajectories",
            f"must not exceed replay.capacity = {config.replay.capacity}: the buffer would never hold so many, "
            f"and training would never start.",
        )


def buffer_holds_a_batch(config: RunConfig) -> Iterator[Problem]:
    """B * K trajectories, K of them of one prompt, must fit."""
    trainer, replay = config.trainer, config.replay
    if replay.capacity < batch_trajectories(config):
        yield _problem(
            config,
            "replay.capacity",
            f"must be at least one batch, trainer.prompts_per_step * trainer.completions_per_prompt = "
            f"{trainer.prompts_per_step} * {trainer.completions_per_prompt} = {batch_trajectories(config)}.",
        )
    if replay.capacity_per_prompt < trainer.completions_per_prompt:
        yield _problem(
            config,
            "replay.capacity_per_prompt",
            f"must be at least trainer.completions_per_prompt = {trainer.completions_per_prompt}: "
            f"a training group could never be drawn.",
        )


def beta_schedule_has_a_length(config: RunConfig) -> Iterator[Problem]:
    """A final beta needs steps to get there."""
    objective = config.objective
    if objective.beta_final is not None and objective.beta_steps == 0:
        yield _problem(
            config,
            "objective.beta_final",
            "needs objective.beta_steps > 0, the length of the change; for a constant beta leave beta_final away.",
        )


def prompts_divide_among_ranks(config: RunConfig) -> Iterator[Problem]:
    """Each rank takes the same number of whole prompts."""
    trainer = config.trainer
    if trainer.prompts_per_step % trainer.num_ranks:
        fitting = max(1, round(trainer.prompts_per_step / trainer.num_ranks)) * trainer.num_ranks
        yield _problem(
            config,
            "trainer.prompts_per_step",
            f"must be divisible by trainer.num_ranks = {trainer.num_ranks}: a group is never split; use {fitting}.",
        )


def sync_mode_is_on_policy(config: RunConfig) -> Iterator[Problem]:
    """Mode sync promises on-policy training: new weights after every step, only their data."""
    if config.mode == "sync" and config.sync.period != 1:
        yield _problem(config, "sync.period", "must be 1 when mode = sync: searchers and trainer take turns.")
    if config.mode == "sync" and config.replay.on_policy_fraction != 1.0:
        yield _problem(
            config,
            "replay.on_policy_fraction",
            "must be 1.0 when mode = sync: only the data of the newest policy is used.",
        )


def staleness_limit_leaves_data(config: RunConfig) -> Iterator[Problem]:
    """Async: data is up to k - 1 steps old before a sync, and one more while a completion is generated."""
    limit, period = config.replay.max_staleness, config.sync.period
    if config.mode == "async" and limit is not None and limit < period:
        yield _problem(
            config,
            "replay.max_staleness",
            f"must be at least sync.period = {period} when mode = async: just before a sync even the newest data is "
            f"that old, and the trainer would starve; raise it, or choose mode = 'sync' for on-policy training.",
        )


def ring_takes_the_largest_group(config: RunConfig) -> Iterator[Problem]:
    """A record that does not fit its ring can never be delivered."""
    if config.searchers.ring_capacity_bytes < smallest_ring_bytes(config):
        yield _problem(
            config,
            "searchers.ring_capacity_bytes",
            f"must be at least {smallest_ring_bytes(config)}: twice the largest group "
            f"({config.searchers.num_completions} completions of {config.searchers.max_new_tokens} tokens, "
            f"about {largest_group_bytes(config)} bytes).",
        )


def learning_rate_schedule_is_complete(config: RunConfig) -> Iterator[Problem]:
    """The schedule exists and has the arguments it cannot do without."""
    yield from schedule_problems(config.trainer.lr_schedule, config.trainer.lr_schedule_options, section="trainer")


ERRORS: tuple[Rule, ...] = (
    groups_hold_a_training_group,
    evaluations_fall_on_syncs,
    buffer_can_start,
    buffer_holds_a_batch,
    beta_schedule_has_a_length,
    prompts_divide_among_ranks,
    sync_mode_is_on_policy,
    staleness_limit_leaves_data,
    ring_takes_the_largest_group,
    learning_rate_schedule_is_complete,
)


def groups_smaller_than_training_groups(config: RunConfig) -> Iterator[Problem]:
    """Async with S < K works only where prompts come back."""
    used = config.trainer.completions_per_prompt
    if config.mode == "async" and config.searchers.num_completions < used:
        yield _problem(
            config,
            "searchers.num_completions",
            f"is less than trainer.completions_per_prompt = {used}: a prompt fills a training group only when it was "
            f"generated more than once.",
        )


def training_starts_with_less_than_a_batch(config: RunConfig) -> Iterator[Problem]:
    """The first batches would repeat prompts."""
    if config.replay.initial_trajectories < batch_trajectories(config):
        yield _problem(
            config,
            "replay.initial_trajectories",
            f"is less than one batch of {batch_trajectories(config)}: the first steps draw some prompts twice.",
        )


def passes_exceed_the_token_budget(config: RunConfig) -> Iterator[Problem]:
    """A group is never split, whatever the budget says."""
    if config.trainer.micro_batch_tokens < group_tokens(config):
        yield _problem(
            config,
            "trainer.micro_batch_tokens",
            f"is less than a full group, trainer.completions_per_prompt * (searchers.max_prompt_tokens + "
            f"searchers.max_new_tokens) = {group_tokens(config)}: a group is never split, so a pass can be that large.",
        )


def nucleus_changes_behaviour_logprobs(config: RunConfig) -> Iterator[Problem]:
    """top_p < 1: the engine's log-probs are renormalised over the nucleus."""
    if config.searchers.top_p < 1.0:
        yield _problem(
            config,
            "searchers.top_p",
            "renormalises the behaviour log-probs over the nucleus: they no longer compare with the trainer's.",
        )


def bfloat16_sets_off_the_alarm(config: RunConfig) -> Iterator[Problem]:
    """Rounding alone exceeds a float32 alarm level."""
    sync = config.sync
    if config.policy.dtype == "bfloat16" and sync.probe_sequences and sync.max_logprob_difference < 0.05:
        yield _problem(
            config,
            "sync.max_logprob_difference",
            "is an alarm level for float32: with policy.dtype = bfloat16 rounding alone exceeds it; use 0.05 or more.",
        )


def warmup_never_ends(config: RunConfig) -> Iterator[Problem]:
    """The peak learning rate is reached after the last step."""
    trainer = config.trainer
    if trainer.warmup_steps >= trainer.max_steps and trainer.lr_schedule != "constant":
        yield _problem(
            config,
            "trainer.warmup_steps",
            f"reaches the peak learning rate after trainer.max_steps = {trainer.max_steps} only.",
        )


def settings_without_effect(config: RunConfig) -> Iterator[Problem]:
    """A setting that nothing reads, because of another one."""
    replay, trainer, evaluation, sync = config.replay, config.trainer, config.evaluation, config.sync
    if trainer.warmup_steps and trainer.lr_schedule == "constant":
        yield _problem(config, "trainer.warmup_steps", "has no effect with trainer.lr_schedule = constant.")
    if config.objective.beta_steps and config.objective.beta_final is None:
        yield _problem(config, "objective.beta_steps", "has no effect without objective.beta_final.")
    if replay.inverse_temperature != 1.0 and replay.prioritization == "uniform":
        yield _problem(config, "replay.inverse_temperature", "has no effect with replay.prioritization = uniform.")
    if replay.prioritization == "reward-softmax" and replay.on_policy_fraction == 1.0:
        yield _problem(config, "replay.prioritization", "has no effect with replay.on_policy_fraction = 1.")
    if evaluation.period and not evaluation.num_prompts:
        yield _problem(config, "evaluation.period", "has no effect with evaluation.num_prompts = 0.")
    if evaluation.target is not None and not evaluation.num_prompts:
        yield _problem(config, "evaluation.target", "has no effect with evaluation.num_prompts = 0.")
    if sync.max_logprob_difference != 1e-3 and not sync.probe_sequences:
        yield _problem(config, "sync.max_logprob_difference", "has no effect with sync.probe_sequences = 0.")


WARNINGS: tuple[Rule, ...] = (
    groups_smaller_than_training_groups,
    training_starts_with_less_than_a_batch,
    passes_exceed_the_token_budget,
    nucleus_changes_behaviour_logprobs,
    bfloat16_sets_off_the_alarm,
    warmup_never_ends,
    settings_without_effect,
)


def sft_problems(config: SftConfig) -> Iterator[Problem]:
    """The rules of supervised fine-tuning."""
    for index, stage in enumerate(config.stages):
        total = sum(stage.mixture.values())
        if abs(total - 1.0) > 1e-6:
            yield Problem(
                ("stages", index, "mixture"), f"stages.{index}.mixture: the shares add up to {total:g}, not to 1."
            )
        yield from schedule_problems(stage.lr_schedule, stage.lr_schedule_options, section=f"stages.{index}")
    for setting in ("batch_tokens", "micro_batch_tokens"):
        if config.max_tokens > getattr(config, setting):
            yield _problem(config, setting, f"must be at least max_tokens = {config.max_tokens}: an example must fit.")
    if config.policy is not None and config.architecture:
        yield Problem(("architecture",), "architecture has no effect when policy is set: its shape is the policy's.")

"""What settings must satisfy together. One small function a rule; all of them are asked, all violations reported.

A rule yields `Problem`s whose path is the setting that the user most likely wants to change. Rules in ERRORS refuse the
run; those in WARNINGS are printed and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tbactl.config import replay_rules
from tbactl.config.derived import largest_group_bytes, shared_group_tokens, smallest_ring_bytes
from tbactl.config.hardware import Profile
from tbactl.config.objectives import OPTION_MODELS
from tbactl.config.problems import Problem, setting_problem
from tbactl.config.schedules import schedule_problems
from tbactl.config.sections import RunConfig, SftConfig
from tbactl.config.task_rules import rewards_return_in_time
from tbactl.config.without_effect import settings_without_effect

Rule = Callable[[RunConfig], Iterator[Problem]]

# Of online DPO: its papers use 0.1, while KL coefficients of the other objectives are often below this.
SMALL_DPO_BETA = 0.05

# Section and setting: each may have a `_final` value, reached after `_steps`.
MOVING_SETTINGS = (
    ("objective", "beta"),
    ("objective", "reference_temperature"),
    ("objective", "target_temperature"),
    ("searchers", "temperature"),
    ("replay", "on_policy_fraction"),
    ("replay", "inverse_temperature"),
)


def groups_hold_a_training_group(config: RunConfig) -> Iterator[Problem]:
    """On-policy, every prompt is trained on once, with the completions of one group: S >= K."""
    samples, used = config.searchers.num_completions, config.trainer.completions_per_prompt
    if config.mode == "sync" and samples < used:
        yield setting_problem(
            config,
            "searchers.num_completions",
            f"must be at least trainer.completions_per_prompt = {used} when mode = sync: a prompt is generated once.",
        )


def evaluations_fall_on_syncs(config: RunConfig) -> Iterator[Problem]:
    """A searcher evaluates the weights it holds, so evaluations happen at syncs."""
    period, sync = config.evaluation.period, config.sync.period
    if config.evaluation.num_prompts and period % sync:
        yield setting_problem(
            config,
            "evaluation.period",
            f"must be a multiple of sync.period = {sync}: searchers hold new weights only after a sync; "
            f"use {max(sync, period - period % sync)} or {period - period % sync + sync}.",
        )


def schedules_have_a_length(config: RunConfig) -> Iterator[Problem]:
    """A final value needs steps to get there."""
    for section, name in MOVING_SETTINGS:
        settings = getattr(config, section)
        if getattr(settings, f"{name}_final") is not None and getattr(settings, f"{name}_steps") == 0:
            yield setting_problem(
                config,
                f"{section}.{name}_final",
                f"needs {section}.{name}_steps > 0, the length of the change; for a constant {name} leave "
                f"{name}_final away.",
            )


def beta_jumps_before_the_end_of_its_line(config: RunConfig) -> Iterator[Problem]:
    """The jump is to the final beta, from a line that has not got there."""
    objective = config.objective
    if objective.beta_stop_step is None:
        return
    if objective.beta_final is None:
        yield setting_problem(config, "objective.beta_stop_step", "needs objective.beta_final, where beta jumps to.")
    elif 0 < objective.beta_steps < objective.beta_stop_step:
        yield setting_problem(
            config,
            "objective.beta_stop_step",
            f"must not exceed objective.beta_steps = {objective.beta_steps}: there beta has its final value already.",
        )


def only_trajectory_balance_has_a_tempered_target(config: RunConfig) -> Iterator[Problem]:
    """The other built-in objectives would leave it out without a word; those of other packages may read it."""
    objective = config.objective
    if objective.kind == "trajectory-balance" or objective.kind not in OPTION_MODELS:
        return
    for name in ("reference_temperature", "target_temperature"):
        if (getattr(objective, name), getattr(objective, f"{name}_final")) != (1.0, None):
            yield setting_problem(
                config,
                f"objective.{name}",
                f"tempers the target of trajectory-balance; objective '{objective.kind}' has no such target: remove "
                f"{name} and {name}_final.",
            )


def shortest_completion_is_not_longer_than_the_longest(config: RunConfig) -> Iterator[Problem]:
    """A completion is cut before it may end."""
    searchers = config.searchers
    if searchers.min_new_tokens > searchers.max_new_tokens:
        yield setting_problem(
            config,
            "searchers.min_new_tokens",
            f"must not exceed searchers.max_new_tokens = {searchers.max_new_tokens}.",
        )


def prompts_divide_among_ranks(config: RunConfig) -> Iterator[Problem]:
    """Each rank takes the same number of whole prompts."""
    trainer = config.trainer
    if trainer.prompts_per_step % trainer.num_ranks:
        fitting = max(1, round(trainer.prompts_per_step / trainer.num_ranks)) * trainer.num_ranks
        yield setting_problem(
            config,
            "trainer.prompts_per_step",
            f"must be divisible by trainer.num_ranks = {trainer.num_ranks}: a group is never split; use {fitting}.",
        )


def ring_takes_the_largest_group(config: RunConfig) -> Iterator[Problem]:
    """A record that does not fit its ring can never be delivered."""
    if config.searchers.ring_capacity_bytes < smallest_ring_bytes(config):
        yield setting_problem(
            config,
            "searchers.ring_capacity_bytes",
            f"must be at least {smallest_ring_bytes(config)}: twice the largest group "
            f"({config.searchers.num_completions} completions of {config.searchers.max_new_tokens} tokens, "
            f"about {largest_group_bytes(config)} bytes).",
        )


def adapters_have_layers(config: RunConfig) -> Iterator[Problem]:
    """Adapters are put on all linear layers, or on those that are named."""
    policy = config.policy
    if policy.lora_rank and not policy.lora_target_modules:
        yield setting_problem(config, "policy.lora_target_modules", "must name at least one layer, or ['all-linear'].")
    if "all-linear" in policy.lora_target_modules and len(policy.lora_target_modules) > 1:
        yield setting_problem(
            config, "policy.lora_target_modules", "must be ['all-linear'] alone, or names of layers without it."
        )


def reference_of_adapters_is_their_base(config: RunConfig) -> Iterator[Problem]:
    """With adapters there is no second model that could follow the policy."""
    if config.policy.lora_rank and config.reference.kind != "initial":
        yield setting_problem(
            config,
            "reference.kind",
            "must be 'initial' with policy.lora_rank > 0: the reference is the policy without its adapters, which "
            "stays as it is; train all weights (policy.lora_rank = 0) to move it.",
        )


def learning_rate_schedule_is_complete(config: RunConfig) -> Iterator[Problem]:
    """The schedule exists, has the arguments it cannot do without, and can compute with those it has."""
    trainer = config.trainer
    yield from schedule_problems(
        trainer.lr_schedule, trainer.lr_schedule_options, learning_rate=trainer.learning_rate, section="trainer"
    )


def checkpoints_that_are_kept_are_written(config: RunConfig) -> Iterator[Problem]:
    """What is never written cannot be kept."""
    keep_every, period = config.checkpoint.keep_every, config.checkpoint.period
    if not keep_every:
        return
    if not period:
        yield setting_problem(
            config, "checkpoint.keep_every", "needs checkpoint.period > 0: with 0 the only checkpoint is the last one."
        )
    elif keep_every % period:
        yield setting_problem(
            config,
            "checkpoint.keep_every",
            f"must be a multiple of checkpoint.period = {period}, the steps that have a checkpoint; use "
            f"{keep_every - keep_every % period + period}.",
        )


def the_run_stops_after_the_alarm(config: RunConfig) -> Iterator[Problem]:
    """The level that ends a run is not below the one that warns."""
    sync = config.sync
    if 0 < sync.stop_logprob_difference < sync.max_logprob_difference:
        yield setting_problem(
            config,
            "sync.stop_logprob_difference",
            f"must be at least sync.max_logprob_difference = {sync.max_logprob_difference:g}, the alarm level, or 0 to "
            f"never end the run.",
        )


ERRORS: tuple[Rule, ...] = (
    groups_hold_a_training_group,
    evaluations_fall_on_syncs,
    replay_rules.buffer_can_start,
    replay_rules.buffer_holds_a_batch,
    schedules_have_a_length,
    beta_jumps_before_the_end_of_its_line,
    only_trajectory_balance_has_a_tempered_target,
    shortest_completion_is_not_longer_than_the_longest,
    prompts_divide_among_ranks,
    replay_rules.sync_mode_is_on_policy,
    replay_rules.staleness_limit_leaves_data,
    replay_rules.samples_per_insert_bounds_are_in_order,
    replay_rules.samples_per_insert_lets_training_start,
    replay_rules.near_duplicates_can_be_found,
    ring_takes_the_largest_group,
    adapters_have_layers,
    reference_of_adapters_is_their_base,
    learning_rate_schedule_is_complete,
    checkpoints_that_are_kept_are_written,
    the_run_stops_after_the_alarm,
    rewards_return_in_time,
)


def groups_smaller_than_training_groups(config: RunConfig) -> Iterator[Problem]:
    """Async with S < K works only where prompts come back."""
    used = config.trainer.completions_per_prompt
    if config.mode == "async" and config.searchers.num_completions < used:
        yield setting_problem(
            config,
            "searchers.num_completions",
            f"is less than trainer.completions_per_prompt = {used}: a prompt fills a training group only when it was "
            f"generated more than once.",
        )


def passes_exceed_the_token_budget(config: RunConfig) -> Iterator[Problem]:
    """A group is never split, whatever the budget says."""
    if config.trainer.micro_batch_tokens < shared_group_tokens(config):
        yield setting_problem(
            config,
            "trainer.micro_batch_tokens",
            f"is less than a full group, searchers.max_prompt_tokens + trainer.completions_per_prompt * "
            f"searchers.max_new_tokens = {shared_group_tokens(config)}: a group is never split, so a pass can be that "
            f"large (larger where the model cannot share prompts).",
        )


def nucleus_changes_behaviour_logprobs(config: RunConfig) -> Iterator[Problem]:
    """top_p < 1: the engine's log-probs are renormalised over the nucleus."""
    if config.searchers.top_p < 1.0:
        yield setting_problem(
            config,
            "searchers.top_p",
            "renormalises the behaviour log-probs over the nucleus: they no longer compare with the trainer's, and "
            "objectives that use their ratio are biased.",
        )


def bfloat16_sets_off_the_alarm(config: RunConfig) -> Iterator[Problem]:
    """Rounding alone exceeds a float32 alarm level."""
    sync = config.sync
    if config.policy.dtype == "bfloat16" and sync.probe_sequences and sync.max_logprob_difference < 0.05:
        yield setting_problem(
            config,
            "sync.max_logprob_difference",
            "is an alarm level for float32: with policy.dtype = bfloat16 rounding alone exceeds it; use 0.05 or more.",
        )


def warmup_never_ends(config: RunConfig) -> Iterator[Problem]:
    """The peak learning rate is reached after the last step."""
    trainer = config.trainer
    if trainer.warmup_steps >= trainer.max_steps and trainer.lr_schedule != "constant":
        yield setting_problem(
            config,
            "trainer.warmup_steps",
            f"reaches the peak learning rate after trainer.max_steps = {trainer.max_steps} only.",
        )


def decay_begins_in_the_warmup(config: RunConfig) -> Iterator[Problem]:
    """Without a plateau of its own the decay ends at the last step: a long one begins before the peak is reached."""
    trainer, options = config.trainer, config.trainer.lr_schedule_options
    if trainer.lr_schedule != "warmup_stable_decay" or "num_stable_steps" in options:
        return
    num_left = trainer.max_steps - trainer.warmup_steps
    if 0 < num_left < options.get("num_decay_steps", 0):
        yield Problem(
            ("trainer", "lr_schedule_options", "num_decay_steps"),
            f"trainer.lr_schedule_options.num_decay_steps = {options['num_decay_steps']} is more than "
            f"trainer.max_steps - trainer.warmup_steps = {num_left}: the peak learning rate is never reached; use at "
            f"most {num_left}, or give num_stable_steps to let the run end within the decay.",
        )


def steps_without_a_final_value(config: RunConfig) -> Iterator[Problem]:
    """Steps of a change need a value to change to."""
    for section, name in MOVING_SETTINGS:
        settings = getattr(config, section)
        if getattr(settings, f"{name}_steps") and getattr(settings, f"{name}_final") is None:
            yield setting_problem(config, f"{section}.{name}_steps", f"has no effect without {section}.{name}_final.")


def reference_never_moves(config: RunConfig) -> Iterator[Problem]:
    """A reset, or a move of the average, that comes after the last step; or an average that keeps all of the old."""
    reference, max_steps = config.reference, config.trainer.max_steps
    if reference.kind == "initial":
        return
    if reference.period >= max_steps:
        yield setting_problem(
            config,
            "reference.period",
            f"moves the reference after trainer.max_steps = {max_steps} only: it stays the initial policy.",
        )
    if reference.kind == "ema" and reference.ema_decay == 1.0:
        yield setting_problem(config, "reference.ema_decay", "keeps the old reference: it stays the initial policy.")


def sampling_is_hotter_than_the_policy(config: RunConfig) -> Iterator[Problem]:
    """Mode sync promises on-policy data; while the temperature moves it is not."""
    searchers = config.searchers
    if config.mode == "sync" and searchers.temperature_final not in (None, searchers.temperature):
        yield setting_problem(
            config,
            "searchers.temperature_final",
            f"is the policy's temperature from the start: in the first searchers.temperature_steps = "
            f"{searchers.temperature_steps} steps the data of mode = sync is not on-policy.",
        )


def beta_is_too_small_for_dpo(config: RunConfig) -> Iterator[Problem]:
    """DPO's beta multiplies log-ratios inside a sigmoid; a KL coefficient in reward units is far below."""
    if config.objective.kind != "online-dpo":
        return
    for name in ("beta", "beta_final"):
        beta = getattr(config.objective, name)
        if beta is not None and beta < SMALL_DPO_BETA:
            yield setting_problem(
                config,
                f"objective.{name}",
                "is small for objective 'online-dpo', whose beta is DPO's own and not a KL coefficient in reward units "
                "as that of the others; 0.1 is usual.",
            )


def tba_prime_never_resets_its_reference(config: RunConfig) -> Iterator[Problem]:
    """The published TBA' does. With adapters the reference cannot move."""
    if (config.objective.kind, config.reference.kind, config.policy.lora_rank) == ("tba-prime", "initial", 0):
        yield setting_problem(
            config,
            "reference.kind",
            "keeps the reference of objective 'tba-prime' as it is; the published TBA' resets it to the policy every "
            "50 steps: reference.kind = reset, reference.period = 50.",
        )


WARNINGS: tuple[Rule, ...] = (
    groups_smaller_than_training_groups,
    replay_rules.training_starts_with_less_than_a_batch,
    replay_rules.training_starts_later_than_it_seems,
    replay_rules.cosine_of_the_default_tolerance,
    passes_exceed_the_token_budget,
    nucleus_changes_behaviour_logprobs,
    bfloat16_sets_off_the_alarm,
    warmup_never_ends,
    decay_begins_in_the_warmup,
    reference_never_moves,
    sampling_is_hotter_than_the_policy,
    beta_is_too_small_for_dpo,
    tba_prime_never_resets_its_reference,
    steps_without_a_final_value,
    settings_without_effect,
)


def run_warnings(config: RunConfig, *, profile: Profile) -> Iterator[Problem]:
    """All of WARNINGS, and what only shows beside the profile."""
    for rule in WARNINGS:
        yield from rule(config)
    yield from ray_hides_the_gpus(config, profile=profile)


def ray_hides_the_gpus(config: RunConfig, *, profile: Profile) -> Iterator[Problem]:
    """Ray gives a searcher the devices it asks for: by default none. vLLM for CUDA does not even start then."""
    searchers = config.searchers
    needs_one = searchers.launcher == "ray" and searchers.engine != "fake" and profile == "gpu"
    if not needs_one or "GPU" in searchers.ray_resources:
        return
    asked = "".join(f"{name} = {amount:g}, " for name, amount in searchers.ray_resources.items())
    yield setting_problem(
        config,
        "searchers.ray_resources",
        f"asks for no GPU, so searchers see none of their node's, and engine '{searchers.engine}' with settings of "
        f"profile gpu hardly runs without: set searchers.ray_resources = {{{asked}GPU = 1}}; where the nodes have "
        f"no GPU, --profile cpu.",
    )


def sft_problems(config: SftConfig) -> Iterator[Problem]:
    """The rules of supervised fine-tuning."""
    for index, stage in enumerate(config.stages):
        total = sum(stage.mixture.values())
        if abs(total - 1.0) > 1e-6:
            yield Problem(
                ("stages", index, "mixture"), f"stages.{index}.mixture: the shares add up to {total:g}, not to 1."
            )
        yield from schedule_problems(
            stage.lr_schedule,
            stage.lr_schedule_options,
            learning_rate=stage.learning_rate,
            section=f"stages.{index}",
        )
    for setting in ("batch_tokens", "micro_batch_tokens"):
        if config.max_tokens > getattr(config, setting):
            yield setting_problem(
                config, setting, f"must be at least max_tokens = {config.max_tokens}: an example must fit."
            )
    if config.policy is not None and config.policy.lora_rank:
        yield setting_problem(config, "policy.lora_rank", "must be 0: supervised fine-tuning trains all weights.")
    if config.policy is not None and config.architecture:
        yield Problem(("architecture",), "architecture has no effect when policy is set: its shape is the policy's.")

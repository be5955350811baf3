"""Settings that nothing reads, because of another one: a table, and the warning it gives. Listed in `rules.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tbactl.config.problems import Problem, setting_problem
from tbactl.config.sections import RunConfig

MIXTURE = "mixture"
# Samplers of other packages may use any setting.
OWN_SAMPLERS = (MIXTURE, "recency", "uniform", "reward-softmax", "residual")


@dataclass(frozen=True, slots=True)
class Idle:
    """Settings of a section that have no effect when `is_so`."""

    section: str
    names: tuple[str, ...]
    is_so: Callable[[RunConfig], bool]
    because: str


def _is_sync(config: RunConfig) -> bool:
    return config.mode == "sync"


def _is_other_sampler(config: RunConfig) -> bool:
    return not _is_sync(config) and config.replay.sampler in OWN_SAMPLERS and config.replay.sampler != MIXTURE


def _is_always_recent(config: RunConfig) -> bool:
    replay = config.replay
    is_always = replay.on_policy_fraction == 1.0 and replay.on_policy_fraction_final in (1.0, None)
    return not _is_sync(config) and replay.sampler == MIXTURE and is_always


def _is_never_recent(config: RunConfig) -> bool:
    replay = config.replay
    if _is_sync(config) or replay.sampler not in OWN_SAMPLERS:
        return False
    never = replay.on_policy_fraction == 0.0 and replay.on_policy_fraction_final in (0.0, None)
    return never if replay.sampler == MIXTURE else replay.sampler != "recency"


def _never_draws_by(kind: str) -> Callable[[RunConfig], bool]:
    def is_so(config: RunConfig) -> bool:
        replay = config.replay
        if _is_sync(config) or replay.sampler not in OWN_SAMPLERS:
            return _is_sync(config)
        drawn_by = replay.prioritization if replay.sampler == MIXTURE else replay.sampler
        return drawn_by != kind or _is_always_recent(config)

    return is_so


def _has_no_kl_term(config: RunConfig) -> bool:
    """Draws by residual read beta all the same."""
    objective = config.objective
    has_none = objective.kind in ("grpo", "dr-grpo") and objective.options.get("kl_in_loss") is False
    return has_none and _never_draws_by("residual")(config)


def _has_no_evaluation(config: RunConfig) -> bool:
    return config.evaluation.num_prompts == 0


INVERSE_TEMPERATURE = ("inverse_temperature", "inverse_temperature_final", "inverse_temperature_steps")
ON_POLICY_FRACTION = ("on_policy_fraction", "on_policy_fraction_final", "on_policy_fraction_steps")
IGNORED_BY_TURNS = (
    "sampler",
    "mixing",
    "prioritization",
    "equal_rewards",
    "intake",
    "near_duplicates",
)

ONCE = "with mode = sync: each group is used once"

IDLE: tuple[Idle, ...] = (
    Idle(
        "trainer",
        ("warmup_steps",),
        lambda c: c.trainer.lr_schedule == "constant",
        "with trainer.lr_schedule = constant",
    ),
    Idle(
        "searchers",
        ("ray_address", "ray_resources"),
        lambda c: c.searchers.launcher != "ray",
        "unless searchers.launcher = ray",
    ),
    Idle(
        "objective",
        ("beta_final",),
        _has_no_kl_term,
        "on what is learned with objective.options.kl_in_loss = false: the loss has no beta",
    ),
    Idle("evaluation", ("period", "target"), _has_no_evaluation, "with evaluation.num_prompts = 0"),
    Idle(
        "sync",
        ("max_logprob_difference", "stop_logprob_difference", "stop_patience"),
        lambda c: not c.sync.probe_sequences,
        "with sync.probe_sequences = 0",
    ),
    Idle(
        "sync",
        ("stop_patience",),
        lambda c: bool(c.sync.probe_sequences) and not c.sync.stop_logprob_difference,
        "with sync.stop_logprob_difference = 0",
    ),
    Idle(
        "policy",
        ("lora_alpha", "lora_target_modules"),
        lambda c: not c.policy.lora_rank,
        "with policy.lora_rank = 0",
    ),
    Idle("sync", ("weights",), lambda c: not c.policy.lora_rank, "with policy.lora_rank = 0: whole weights are sent"),
    Idle("reference", ("period",), lambda c: c.reference.kind == "initial", "with reference.kind = initial"),
    Idle("reference", ("ema_decay",), lambda c: c.reference.kind != "ema", "unless reference.kind = ema"),
    Idle("reference", ("resets_optimizer",), lambda c: c.reference.kind != "reset", "unless reference.kind = reset"),
    Idle("replay", IGNORED_BY_TURNS, _is_sync, "with mode = sync: a batch is the newest groups, each used once"),
    Idle(
        "replay",
        ("max_samples_per_insert",),
        lambda c: _is_sync(c) and (c.replay.max_samples_per_insert or 1) < 1,
        ONCE,
    ),
    Idle("replay", ("min_samples_per_insert",), lambda c: _is_sync(c) and c.replay.min_samples_per_insert > 1, ONCE),
    Idle("replay", ("intake",), lambda c: not _is_sync(c) and c.sync.period == 1, "with sync.period = 1"),
    Idle("replay", ON_POLICY_FRACTION, _is_other_sampler, "unless replay.sampler = mixture"),
    Idle("replay", ("mixing", "prioritization"), _is_other_sampler, "unless replay.sampler = mixture"),
    Idle("replay", ("mixing", "prioritization"), _is_always_recent, "with replay.on_policy_fraction = 1"),
    Idle("replay", ("equal_rewards",), _is_never_recent, "where the most recent data is never drawn"),
    Idle("replay", INVERSE_TEMPERATURE, _never_draws_by("reward-softmax"), "where nothing is drawn by reward-softmax"),
    Idle("replay", ("residual_exponent",), _never_draws_by("residual"), "where nothing is drawn by residual"),
    Idle(
        "replay",
        ("near_duplicate_tolerance",),
        lambda c: c.replay.near_duplicates == "keep",
        "with replay.near_duplicates = keep",
    ),
    Idle(
        "replay",
        ("embedder",),
        lambda c: c.replay.near_duplicates != "embedding",
        "unless replay.near_duplicates = embedding",
    ),
)


def settings_without_effect(config: RunConfig) -> Iterator[Problem]:
    """A setting that differs from its default, and that nothing reads because of another one."""
    for idle in IDLE:
        section = getattr(config, idle.section)
        for name in idle.names:
            is_set = getattr(section, name) != type(section).model_fields[name].default
            if is_set and idle.is_so(config):
                yield setting_problem(config, f"{idle.section}.{name}", f"has no effect {idle.because}.")

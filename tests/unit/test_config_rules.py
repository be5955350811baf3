"""Each rule: a configuration that satisfies it, one that does not, and the setting it blames."""

import pytest

from tbactl.config import rules
from tbactl.config.sections import RunConfig, SftConfig
from tbactl.config.without_effect import IDLE


def config(**changes):
    """A configuration without errors or warnings, changed by `section__key=value`."""
    tables = {
        "name": "test",
        "task": {"kind": "fake"},
        "policy": {"path": "x"},
        "searchers": {"max_prompt_tokens": 100, "max_new_tokens": 100},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            tables.setdefault(section, {})[name] = value
        else:
            tables[section] = value
    return RunConfig.model_validate(tables)


SYNC = {"mode": "sync", "sync__period": 1, "replay__on_policy_fraction": 1.0}
SOFTMAX = {"replay__prioritization": "reward-softmax", "replay__on_policy_fraction": 0.5}
DECAY = {"trainer__lr_schedule": "warmup_stable_decay", "trainer__lr_schedule_options": {"num_decay_steps": 11}}
WITHOUT_KL = {"objective__options": {"kl_in_loss": False}}
MOVING_BETA = {"objective__beta_final": 0.001, "objective__beta_steps": 5}
EMBEDDING = {"replay__near_duplicates": "embedding", "replay__embedder": "x", "replay__near_duplicate_tolerance": 0.4}


def found(these_rules, config):
    return [(".".join(map(str, p.path)), p.sentence) for rule in these_rules for p in rule(config)]


def test_default_sections_break_no_rule_and_warn_of_nothing():
    assert found(rules.ERRORS, config()) == []
    assert found(rules.WARNINGS, config()) == []


@pytest.mark.fault("I-69")
@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        (
            {"mode": "sync", "sync__period": 1, "replay__on_policy_fraction": 1.0, "searchers__num_completions": 7},
            "searchers.num_completions",
        ),
        ({"evaluation__num_prompts": 1, "evaluation__period": 5, "sync__period": 2}, "evaluation.period"),
        ({"replay__initial_trajectories": 1001, "replay__capacity": 1000}, "replay.initial_trajectories"),
        ({"replay__capacity": 127, "replay__initial_trajectories": 127}, "replay.capacity"),
        ({"replay__capacity_per_prompt": 7}, "replay.capacity_per_prompt"),
        ({"objective__beta_final": 0.001}, "objective.beta_final"),
        ({"searchers__temperature_final": 1.0}, "searchers.temperature_final"),
        ({"replay__on_policy_fraction_final": 0.5}, "replay.on_policy_fraction_final"),
        ({**SOFTMAX, "replay__inverse_temperature_final": 0.5}, "replay.inverse_temperature_final"),
        ({"objective__beta_stop_step": 5}, "objective.beta_stop_step"),
        (
            {"objective__beta_final": 0.001, "objective__beta_steps": 10, "objective__beta_stop_step": 11},
            "objective.beta_stop_step",
        ),
        ({"searchers__min_new_tokens": 101}, "searchers.min_new_tokens"),
        ({"checkpoint__keep_every": 15}, "checkpoint.keep_every"),
        ({"checkpoint__keep_every": 5}, "checkpoint.keep_every"),
        ({"checkpoint__keep_every": 20, "checkpoint__period": 0}, "checkpoint.keep_every"),
        ({"sync__stop_logprob_difference": 0.0005}, "sync.stop_logprob_difference"),
        ({"objective__target_temperature_final": 1.0}, "objective.target_temperature_final"),
        ({"objective__reference_temperature_final": 1.2}, "objective.reference_temperature_final"),
        ({"objective__kind": "kimi", "objective__target_temperature": 2.0}, "objective.target_temperature"),
        (
            {
                "objective__kind": "tba-prime",
                "objective__reference_temperature_final": 1.2,
                "objective__reference_temperature_steps": 5,
            },
            "objective.reference_temperature",
        ),
        ({"trainer__num_ranks": 3}, "trainer.prompts_per_step"),
        ({"trainer__num_ranks": 32}, "trainer.prompts_per_step"),
        ({"mode": "sync", "sync__period": 2, "replay__on_policy_fraction": 1.0}, "sync.period"),
        ({"mode": "sync", "sync__period": 1}, "replay.on_policy_fraction"),
        (
            {**SYNC, "replay__on_policy_fraction_final": 0.5, "replay__on_policy_fraction_steps": 5},
            "replay.on_policy_fraction_final",
        ),
        (
            {"replay__intake": "at-sync", "sync__period": 3, "replay__max_staleness": 4},
            "replay.max_staleness",
        ),
        (
            {"replay__min_samples_per_insert": 2.0, "replay__max_samples_per_insert": 1.9},
            "replay.min_samples_per_insert",
        ),
        (
            {"replay__max_samples_per_insert": 0.5, "replay__capacity": 255},
            "replay.max_samples_per_insert",
        ),
        (
            {"replay__max_samples_per_insert": 1.0, "replay__capacity": 255, "replay__intake": "at-sync"},
            "replay.max_samples_per_insert",
        ),
        ({**EMBEDDING, "replay__embedder": None}, "replay.near_duplicates"),
        ({**EMBEDDING, "replay__near_duplicate_tolerance": 1.0}, "replay.near_duplicate_tolerance"),
        (
            {"replay__near_duplicates": "edit-distance", "replay__near_duplicate_tolerance": 1.0},
            "replay.near_duplicate_tolerance",
        ),
        (
            {"replay__near_duplicates": "edit-distance", "replay__near_duplicate_tolerance": 0.0},
            "replay.near_duplicate_tolerance",
        ),
        ({"policy__lora_rank": 4, "policy__lora_target_modules": []}, "policy.lora_target_modules"),
        (
            {"policy__lora_rank": 4, "policy__lora_target_modules": ["all-linear", "q_proj"]},
            "policy.lora_target_modules",
        ),
        ({"policy__lora_rank": 4, "reference__kind": "reset"}, "reference.kind"),
        ({"policy__lora_rank": 4, "reference__kind": "ema"}, "reference.kind"),
        ({"replay__max_staleness": 0, "sync__period": 1}, "replay.max_staleness"),
        ({"replay__max_staleness": 4, "sync__period": 5}, "replay.max_staleness"),
        ({"searchers__ring_capacity_bytes": 4096}, "searchers.ring_capacity_bytes"),
        ({"trainer__lr_schedule": "cosin"}, "trainer.lr_schedule"),
        ({"trainer__lr_schedule": "warmup_stable_decay"}, "trainer.lr_schedule"),
        (
            {"trainer__lr_schedule": "cosine", "trainer__lr_schedule_options": {"num_cycle": 1}},
            "trainer.lr_schedule_options.num_cycle",
        ),
    ],
)
def test_error_blames_one_setting_and_gives_its_value(changes, blamed):
    problems = found(rules.ERRORS, config(**changes))
    assert [path for path, _ in problems] == [blamed]
    assert problems[0][1].startswith(blamed)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "sync", "sync__period": 1, "replay__on_policy_fraction": 1.0, "searchers__num_completions": 8},
        {"mode": "sync", "sync__period": 1, "replay__on_policy_fraction": 1.0, "replay__max_staleness": 0},
        {"evaluation__period": 6, "sync__period": 2, "evaluation__num_prompts": 5},
        {"replay__initial_trajectories": 1000, "replay__capacity": 1000},
        {"replay__capacity": 128},
        {"replay__capacity_per_prompt": 8},
        {"objective__beta_final": 0.001, "objective__beta_steps": 1},
        {"objective__beta_final": 0.001, "objective__beta_steps": 5, "objective__beta_stop_step": 5},
        {"searchers__min_new_tokens": 100},
        {"trainer__micro_batch_tokens": 900},
        {
            "objective__kind": "online-dpo",
            "objective__beta": 1.0,
            "objective__beta_final": 0.05,
            "objective__beta_steps": 5,
        },
        {"objective__kind": "tba-prime", "reference__kind": "reset"},
        {"objective__kind": "tba-prime", "policy__lora_rank": 4},
        {"objective__kind": "grpo", **MOVING_BETA},
        {"objective__kind": "grpo", **WITHOUT_KL},
        {"objective__kind": "grpo", **WITHOUT_KL, **MOVING_BETA, "replay__prioritization": "residual"},
        {"objective__target_temperature": 2.0, "objective__reference_temperature": 0.5},
        {
            "objective__target_temperature": 2.0,
            "objective__target_temperature_final": 1.0,
            "objective__target_temperature_steps": 1,
        },
        {"objective__kind": "theirs", "objective__target_temperature": 2.0},
        {"searchers__temperature_final": 1.0, "searchers__temperature_steps": 1},
        {"replay__on_policy_fraction_final": 0.0, "replay__on_policy_fraction_steps": 1},
        {**SOFTMAX, "replay__inverse_temperature_final": 0.0, "replay__inverse_temperature_steps": 1},
        {"replay__prioritization": "residual", "replay__residual_exponent": 0.5},
        {"replay__sampler": "reward-softmax", "replay__inverse_temperature": 2.0},
        {"replay__sampler": "residual", "replay__residual_exponent": 0.5},
        {"replay__sampler": "recency", "replay__equal_rewards": "last"},
        {**SYNC, "replay__max_samples_per_insert": 1.0, "replay__min_samples_per_insert": 1.0},
        {"replay__sampler": "theirs", "replay__residual_exponent": 0.5, "replay__inverse_temperature": 2.0},
        {"replay__sampler": "uniform", "replay__eviction": "lowest-reward"},
        {"replay__min_samples_per_insert": 2.0, "replay__max_samples_per_insert": 2.0},
        {"replay__max_samples_per_insert": 0.5, "replay__initial_trajectories": 256, "replay__capacity": 256},
        {
            "replay__max_samples_per_insert": 1.0,
            "replay__intake": "at-sync",
            "replay__initial_trajectories": 256,
            "replay__capacity": 256,
        },
        {"replay__intake": "at-sync", "sync__period": 3, "replay__max_staleness": 5},
        EMBEDDING,
        {"replay__near_duplicates": "edit-distance", "replay__near_duplicate_tolerance": 0.99},
        {"policy__lora_rank": 4, "policy__lora_alpha": 8.0, "sync__weights": "adapter"},
        {"policy__lora_rank": 4, "policy__lora_target_modules": ["q_proj"]},
        {"reference__kind": "reset", "reference__period": 99, "reference__resets_optimizer": True},
        {"reference__kind": "ema", "reference__ema_decay": 0.5},
        {"trainer__num_ranks": 16},
        {"replay__max_staleness": 1, "sync__period": 1},
        {
            "trainer__lr_schedule": "warmup_stable_decay",
            "trainer__lr_schedule_options": {"num_decay_steps": 5, "num_stable_steps": 3},
        },
        {**DECAY, "trainer__warmup_steps": 89},
        {
            "trainer__lr_schedule": "warmup_stable_decay",
            "trainer__lr_schedule_options": {"num_decay_steps": 101, "num_stable_steps": 3},
        },
        {"trainer__lr_schedule": "cosine_with_min_lr", "trainer__lr_schedule_options": {"min_lr_rate": 0.1}},
    ],
)
def test_setting_at_its_limit_is_accepted(changes):
    assert found(rules.ERRORS, config(**changes)) == []
    assert found(rules.WARNINGS, config(**changes)) == []


def test_ring_limit_is_exact():
    limit = rules.smallest_ring_bytes(config())
    assert found(rules.ERRORS, config(searchers__ring_capacity_bytes=limit)) == []
    assert found(rules.ERRORS, config(searchers__ring_capacity_bytes=limit - 1))[0][0] == (
        "searchers.ring_capacity_bytes"
    )


@pytest.mark.fault("I-69")
def test_all_broken_rules_are_reported_together():
    broken = config(
        trainer__num_ranks=3,
        evaluation__num_prompts=1,
        evaluation__period=5,
        objective__beta_final=0.1,
        replay__capacity_per_prompt=1,
    )
    assert len(found(rules.ERRORS, broken)) == 4


@pytest.mark.fault("I-06")
def test_staleness_zero_in_async_mode_points_to_sync_mode():
    (problem,) = found(rules.ERRORS, config(replay__max_staleness=0))
    assert "mode = 'sync'" in problem[1]


@pytest.mark.fault("I-24", "I-32")
@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"searchers__num_completions": 4}, "searchers.num_completions"),
        ({"replay__initial_trajectories": 127}, "replay.initial_trajectories"),
        ({"trainer__micro_batch_tokens": 899}, "trainer.micro_batch_tokens"),
        ({"searchers__top_p": 0.9}, "searchers.top_p"),
        ({"policy__dtype": "bfloat16"}, "sync.max_logprob_difference"),
        ({"trainer__lr_schedule": "linear", "trainer__warmup_steps": 100}, "trainer.warmup_steps"),
        ({"trainer__warmup_steps": 5}, "trainer.warmup_steps"),
        ({**DECAY, "trainer__warmup_steps": 90}, "trainer.lr_schedule_options.num_decay_steps"),
        ({**DECAY, "trainer__warmup_steps": 100}, "trainer.warmup_steps"),
        ({"objective__beta_steps": 5}, "objective.beta_steps"),
        ({"replay__inverse_temperature": 2.0}, "replay.inverse_temperature"),
        ({"replay__prioritization": "reward-softmax", "replay__on_policy_fraction": 1.0}, "replay.prioritization"),
        ({"replay__prioritization": "residual", "replay__on_policy_fraction": 1.0}, "replay.prioritization"),
        ({"replay__equal_rewards": "last", "replay__on_policy_fraction": 0.0}, "replay.equal_rewards"),
        ({"replay__equal_rewards": "last", "replay__sampler": "uniform"}, "replay.equal_rewards"),
        ({**SYNC, "replay__equal_rewards": "last"}, "replay.equal_rewards"),
        ({"replay__residual_exponent": 2.0}, "replay.residual_exponent"),
        ({"replay__residual_exponent": 2.0, "replay__sampler": "reward-softmax"}, "replay.residual_exponent"),
        ({"replay__inverse_temperature": 2.0, "replay__sampler": "recency"}, "replay.inverse_temperature"),
        ({"replay__sampler": "recency", "replay__on_policy_fraction": 0.5}, "replay.on_policy_fraction"),
        ({"replay__sampler": "uniform", "replay__prioritization": "residual"}, "replay.prioritization"),
        ({"replay__on_policy_fraction_steps": 5}, "replay.on_policy_fraction_steps"),
        ({"searchers__temperature_steps": 5}, "searchers.temperature_steps"),
        ({**SOFTMAX, "replay__inverse_temperature_steps": 5}, "replay.inverse_temperature_steps"),
        ({"replay__intake": "at-sync", "sync__period": 1}, "replay.intake"),
        ({**SYNC, "replay__sampler": "uniform"}, "replay.sampler"),
        ({**SYNC, "replay__intake": "at-sync"}, "replay.intake"),
        ({**SYNC, "replay__max_samples_per_insert": 0.9}, "replay.max_samples_per_insert"),
        ({**SYNC, "replay__min_samples_per_insert": 1.1}, "replay.min_samples_per_insert"),
        ({**SYNC, "replay__prioritization": "reward-softmax"}, "replay.prioritization"),
        ({**SYNC, "replay__near_duplicates": "edit-distance"}, "replay.near_duplicates"),
        (
            {**SYNC, "searchers__temperature_final": 1.0, "searchers__temperature_steps": 5},
            "searchers.temperature_final",
        ),
        ({"replay__max_samples_per_insert": 0.5}, "replay.initial_trajectories"),
        ({"replay__near_duplicate_tolerance": 0.3}, "replay.near_duplicate_tolerance"),
        ({"replay__embedder": "x"}, "replay.embedder"),
        ({**EMBEDDING, "replay__near_duplicate_tolerance": 0.25}, "replay.near_duplicate_tolerance"),
        ({"policy__lora_alpha": 8.0}, "policy.lora_alpha"),
        ({"policy__lora_target_modules": ["q_proj"]}, "policy.lora_target_modules"),
        ({"sync__weights": "adapter"}, "sync.weights"),
        ({"reference__period": 5}, "reference.period"),
        ({"reference__ema_decay": 0.5}, "reference.ema_decay"),
        ({"reference__kind": "reset", "reference__ema_decay": 0.5}, "reference.ema_decay"),
        ({"reference__kind": "ema", "reference__ema_decay": 1.0}, "reference.ema_decay"),
        ({"reference__kind": "ema", "reference__resets_optimizer": True}, "reference.resets_optimizer"),
        ({"reference__kind": "reset", "reference__period": 100}, "reference.period"),
        ({"evaluation__period": 2}, "evaluation.period"),
        ({"evaluation__target": 0.5}, "evaluation.target"),
        ({"sync__probe_sequences": 0, "sync__max_logprob_difference": 1e-2}, "sync.max_logprob_difference"),
        ({"objective__kind": "online-dpo"}, "objective.beta"),
        (
            {
                "objective__kind": "online-dpo",
                "objective__beta": 0.1,
                "objective__beta_final": 0.004,
                "objective__beta_steps": 5,
            },
            "objective.beta_final",
        ),
        ({"objective__kind": "tba-prime"}, "reference.kind"),
        ({"objective__kind": "grpo", **WITHOUT_KL, **MOVING_BETA}, "objective.beta_final"),
        ({"objective__kind": "dr-grpo", **WITHOUT_KL, **MOVING_BETA}, "objective.beta_final"),
    ],
)
def test_warning_blames_one_setting_and_is_no_error(changes, blamed):
    assert [path for path, _ in found(rules.WARNINGS, config(**changes))] == [blamed]
    assert found(rules.ERRORS, config(**changes)) == []


RAY = {"searchers": {"max_prompt_tokens": 100, "max_new_tokens": 100, "launcher": "ray"}}


def test_searchers_on_ray_that_ask_for_no_gpu_are_warned_of_with_profile_gpu():
    resources = {"CPU": 2.0, "fast": 0.5}
    problems = list(rules.run_warnings(config(**RAY, searchers__ray_resources=resources), profile="gpu"))
    assert [problem.path for problem in problems] == [("searchers", "ray_resources")]
    assert "asks for no GPU" in problems[0].sentence
    assert "set searchers.ray_resources = {CPU = 2, fast = 0.5, GPU = 1};" in problems[0].sentence
    assert len(list(rules.run_warnings(config(**RAY), profile="gpu"))) == 1  # the default


@pytest.mark.parametrize(
    ("changes", "profile"),
    [
        (RAY, "cpu"),
        ({**RAY, "searchers__ray_resources": {"CPU": 2.0, "GPU": 0.5}}, "gpu"),
        ({**RAY, "searchers__engine": "fake"}, "gpu"),
        ({}, "gpu"),
    ],
)
def test_searchers_that_have_or_need_no_gpu_are_not_warned_of(changes, profile):
    assert list(rules.run_warnings(config(**changes), profile=profile)) == []


def test_every_rule_is_a_documented_function():
    for rule in (*rules.ERRORS, *rules.WARNINGS):
        assert rule.__doc__


def test_settings_that_may_be_without_effect_exist():
    for idle in IDLE:
        fields = RunConfig.model_fields[idle.section].annotation.model_fields
        assert set(idle.names) <= set(fields)


def test_fine_tuning_refuses_adapters():
    recipe = {
        "name": "t",
        "task": {"kind": "fake"},
        "policy": {"path": "x", "lora_rank": 4},
        "stages": [{"name": "s", "mixture": {"a": 1.0}, "num_tokens": 1, "learning_rate": 1e-3}],
    }
    (problem,) = rules.sft_problems(SftConfig.model_validate(recipe))
    assert problem.path == ("policy", "lora_rank")

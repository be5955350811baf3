"""The shipped recipes of the preference task say what the paper says, and compare what they claim to compare."""

from __future__ import annotations

import pytest

from tbactl.config.loading import load_recipe
from tbactl.objectives.schedules import beta_at


def run_config(name, profile):
    return load_recipe(name, profile=profile).run_config


def test_tldr_gpu_has_the_settings_of_the_papers_table_3():
    config = run_config("tldr", "gpu")
    assert config.policy.path == "mnoukhov/pythia410m-sft-tldr"
    assert config.task.options["documents"] == "tldr"
    assert config.task.options["missing_eos_reward"] == -1.0
    objective, trainer, searchers, replay = config.objective, config.trainer, config.searchers, config.replay
    assert (objective.beta, objective.beta_final, objective.beta_steps, objective.beta_stop_step) == (
        1.0,
        0.05,
        128,
        32,
    )
    assert (trainer.completions_per_prompt, trainer.prompts_per_step, trainer.max_steps) == (20, 8, 256)
    assert (trainer.learning_rate, trainer.lr_schedule, trainer.warmup_steps) == (3e-6, "linear", 0)
    assert (searchers.num_searchers, searchers.num_completions, searchers.temperature) == (3, 20, 0.7)
    assert (searchers.max_prompt_tokens, searchers.max_new_tokens) == (512, 128)
    assert (replay.on_policy_fraction, replay.prioritization, replay.initial_trajectories) == (
        0.5,
        "reward-softmax",
        10_000,
    )
    assert config.sync.period == 10


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_online_dpo_compares_two_and_trains_on_as_many_trajectories_with_the_same_reward(profile):
    tldr, dpo = run_config("tldr", profile), run_config("tldr-online-dpo", profile)
    assert (dpo.objective.kind, dpo.trainer.completions_per_prompt, dpo.searchers.num_completions) == (
        "online-dpo",
        2,
        2,
    )
    batch = [run.trainer.prompts_per_step * run.trainer.completions_per_prompt for run in (tldr, dpo)]
    assert batch[0] == batch[1]
    for section in ("task", "policy", "replay", "sync", "evaluation"):
        assert getattr(tldr, section) == getattr(dpo, section)
    # DPO's beta is another quantity than that of `tldr`, and does not move.
    steps = range(dpo.trainer.max_steps + 1)
    assert [beta_at(dpo.objective, step=step) for step in steps] == pytest.approx([0.1] * len(steps))


@pytest.mark.parametrize("name", ["tldr", "tldr-online-dpo"])
def test_the_engine_leaves_room_on_its_device_for_the_reward_models(name):
    config = run_config(name, "gpu")
    # Without a word the engine takes nine tenths. In float32 the models of 410M and 6.9B parameters have about 30 GB.
    assert 0.0 < config.searchers.engine_options["gpu_memory_utilization"] <= 0.5


def test_sft_asks_as_the_run_does():
    sft, run = load_recipe("sft-tldr", profile="cpu").sft_config, run_config("tldr", "cpu")
    assert sft.policy == run.policy
    for option in ("documents", "prompt_style", "chat_policy"):
        assert sft.task.options[option] == run.task.options[option]
    assert sft.max_tokens == run.searchers.max_prompt_tokens + run.searchers.max_new_tokens

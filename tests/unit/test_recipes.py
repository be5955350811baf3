"""Every shipped recipe is valid with every profile, and says what it is for."""

import pytest

from tbactl.config.hardware import PROFILES
from tbactl.config.loading import load_recipe
from tbactl.config.recipes import read_recipe, shipped_recipes
from tbactl.config.sections import RunConfig

RECIPES = sorted(shipped_recipes())


@pytest.mark.fault("I-73", "I-85")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_warns_of_nothing(name, profile):
    loaded = load_recipe(name, profile=profile)
    assert loaded.config.name == name
    assert loaded.warnings == ()


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_a_description_and_starts_with_a_comment(name):
    path = shipped_recipes()[name]
    assert read_recipe(path, profile="cpu").description
    assert path.read_text().startswith("# ")


def test_the_recipes_of_the_documentation_are_there():
    assert {"gsm8k", "gsm8k-sync", "sft-gsm8k", "smoke"} <= set(RECIPES)


def run_config(name, profile) -> RunConfig:
    return load_recipe(name, profile=profile).run_config


def test_gsm8k_on_gpu_has_the_settings_of_the_papers_figure_1():
    config = run_config("gsm8k", "gpu")
    assert config.policy.path == "realtreetune/rho-1b-sft-GSM8K"
    assert (config.searchers.num_searchers, config.searchers.num_completions) == (3, 24)
    assert (config.trainer.prompts_per_step, config.trainer.completions_per_prompt) == (7, 20)
    assert (config.trainer.max_steps, config.trainer.learning_rate) == (700, 1e-5)
    assert (config.trainer.lr_schedule, config.trainer.warmup_steps) == ("warmup_stable_decay", 50)
    assert config.trainer.lr_schedule_options == {"num_stable_steps": 350, "num_decay_steps": 600}
    assert (config.objective.beta, config.objective.beta_final, config.objective.beta_steps) == (0.014, 0.004, 500)
    assert (config.replay.on_policy_fraction, config.replay.initial_trajectories) == (0.95, 500)
    assert (config.sync.period, config.searchers.temperature, config.policy.dtype) == (2, 0.7, "bfloat16")


@pytest.mark.parametrize("profile", PROFILES)
def test_gsm8k_sync_differs_from_gsm8k_in_asynchrony_alone(profile):
    asynchronous = run_config("gsm8k", profile).model_dump()
    synchronous = run_config("gsm8k-sync", profile).model_dump()
    assert synchronous.pop("mode") == "sync"
    for config in (asynchronous, synchronous):
        config.pop("mode", None)
        config.pop("name")
        config["sync"].pop("period")
        config["replay"].pop("on_policy_fraction")
    assert synchronous == asynchronous

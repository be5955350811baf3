import json
from pathlib import Path

import pytest

from tbactl.config.hardware import PROFILES
from tbactl.config.loading import load_recipe
from tbactl.config.sections import RunConfig, SftConfig
from tbactl.errors import ConfigError
from tests.support.recipes import BASE, write_recipe


def problems_of(recipe, *overrides, profile="cpu"):
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe, overrides=list(overrides), profile=profile)
    return list(caught.value.problems)


def line_of(path, text):
    return Path(path).read_text().splitlines().index(text) + 1


def test_load_recipe_gives_config_profile_and_sources(tmp_path):
    path = write_recipe(tmp_path)
    loaded = load_recipe(path, profile="gpu")
    assert isinstance(loaded.config, RunConfig)
    assert loaded.config.name == loaded.name == "recipe"
    assert loaded.config.task.kind == "fake"
    assert (loaded.profile, loaded.profile_reason) == ("gpu", "asked for with --profile")
    assert [str(source) for source in loaded.sources] == [path]


@pytest.mark.fault("I-70")
def test_three_wrong_keys_are_named_at_once_with_file_line_and_suggestion(tmp_path):
    path = write_recipe(tmp_path, BASE + "learing_rate = 1e-4\nzero_stage = 7\n[replay]\ncapactiy = 5\n")
    problems = problems_of(path)
    assert len(problems) == 3
    assert any(
        p.startswith(f"{path}:{line_of(path, 'learing_rate = 1e-4')}: trainer.learing_rate: ")
        and "did you mean 'trainer.learning_rate'?" in p
        for p in problems
    )
    assert any("trainer.zero_stage = 7: must be one of 0, 1, 2 or 3" in p for p in problems)
    assert any("did you mean 'replay.capacity'?" in p for p in problems)


@pytest.mark.fault("I-70")
def test_key_of_another_section_is_pointed_to(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "trainer.beta=0.1")
    assert problem.startswith("--set: trainer.beta: ")
    assert "did you mean 'objective.beta'?" in problem


def test_unknown_key_without_a_near_one_lists_the_known(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "sync.zzzzzz=1")
    assert "known here: period, " in problem


@pytest.mark.fault("I-70")
def test_misspelt_section_is_pointed_to(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "trainr.max_steps=1")
    assert "did you mean 'trainer'?" in problem


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.max_steps=0", "trainer.max_steps = 0: must be at least 1."),
        ("trainer.max_steps=true", "trainer.max_steps = true: must be an integer."),
        ("trainer.max_steps=1.5", "trainer.max_steps = 1.5: must be an integer."),
        ('trainer.max_steps="3"', 'trainer.max_steps = "3": must be an integer.'),
        ("trainer.learning_rate=fast", 'trainer.learning_rate = "fast": must be a number.'),
        ("trainer.learning_rate=inf", "trainer.learning_rate = Infinity: must be a finite number."),
        ("trainer.adam_betas=[0.9, 1.5]", "trainer.adam_betas.1 = 1.5: must be at most 1."),
        ("trainer.adam_betas=[0.9]", "trainer.adam_betas.1 is missing: it must be set."),
        ("trainer.gradient_checkpointing=1", "trainer.gradient_checkpointing = 1: must be true or false."),
        ("searchers.top_p=0", "searchers.top_p = 0: must be greater than 0."),
        ('searchers.stop_strings="\\n"', 'searchers.stop_strings = "\\n": must be an array.'),
        ('searchers.stop_strings=["\\n", ""]', 'searchers.stop_strings.1 = "": must not be empty.'),
        ("searchers.stop_strings=[true]", "searchers.stop_strings.0 = true: must be a string."),
        ("seed=2147483648", "seed = 2147483648: must be less than 2147483648."),
        ("policy=x", 'policy = "x": must be a table.'),
        ("policy.path=7", "policy.path = 7: must be a string."),
        ("policy.dtype=fp32", "policy.dtype = \"fp32\": must be one of 'float32' or 'bfloat16'."),
        ("name=../x", 'name = "../x": must be 1 to 64 letters'),
        ("task.options=3", "task.options = 3: must be a table."),
        ("runs_dir=3", "runs_dir = 3: must be a string."),
        ("trainer.max_steps=none", "trainer.max_steps = none: must be an integer."),
    ],
)
def test_wrong_value_gives_one_sentence_in_our_words(tmp_path, override, sentence):
    problems = problems_of(write_recipe(tmp_path), override)
    assert [p for p in problems if p.startswith(f"--set: {sentence}")], problems
    assert len(problems) == 1


def test_missing_setting_is_named_with_its_meaning(tmp_path):
    problems = problems_of(write_recipe(tmp_path, '[task]\nkind = "fake"\n[policy]\n'))
    assert any("policy.path is missing: Hugging Face hub name" in p for p in problems)


@pytest.mark.parametrize(
    ("override", "suggested"),
    [
        ("task.kind=fakee", "fake"),
        ("searchers.engine=vlm", "vllm"),
        ("trainer.kind=deepsped", "deepspeed"),
        ("objective.kind=trajectory-balence", "trajectory-balance"),
        ("trainer.lr_schedule=cosin", "cosine"),
        ("replay.sampler=unifrom", "uniform"),
    ],
)
def test_unknown_name_is_refused_with_a_suggestion(tmp_path, override, suggested):
    (problem,) = problems_of(write_recipe(tmp_path), override)
    assert problem.startswith(f"--set: {override.partition('=')[0]}")
    assert f"did you mean '{suggested}'?" in problem


def test_options_that_the_task_refuses_are_reported_under_task_options(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "task.options.no_such_option=1")
    assert "task.options" in problem
    assert "no_such_option" in problem


@pytest.mark.fault("I-69")
def test_rules_are_asked_even_when_other_settings_are_wrong(tmp_path):
    problems = problems_of(
        write_recipe(tmp_path),
        "trainer.zero_stage=9",
        "evaluation.period=5",
        "evaluation.num_prompts=1",
        "sync.period=3",
        "foo.bar=1",
    )
    assert len(problems) == 3
    assert any("must be a multiple of sync.period" in p for p in problems)


def test_rule_about_a_wrong_setting_is_left_out(tmp_path):
    # evaluation.period is refused; its default would satisfy the rule, and the sentence must not speak of defaults.
    problems = problems_of(write_recipe(tmp_path), "evaluation.period=-1", "sync.period=3")
    assert len(problems) == 1


def test_rule_names_the_line_of_the_setting(tmp_path):
    path = write_recipe(tmp_path, BASE + "[evaluation]\nnum_prompts = 1\nperiod = 5\n[sync]\nperiod = 2\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:{line_of(path, 'period = 5')}: evaluation.period = 5 must be a multiple")


def test_overrides_later_wins(tmp_path):
    loaded = load_recipe(
        write_recipe(tmp_path), overrides=["trainer.max_steps=3", "trainer.max_steps=4"], profile="cpu"
    )
    assert loaded.run_config.trainer.max_steps == 4


def test_override_none_unsets_an_optional_setting(tmp_path):
    path = write_recipe(tmp_path, BASE + "[replay]\nmax_staleness = 9\n")
    assert load_recipe(path, profile="cpu").run_config.replay.max_staleness == 9
    loaded = load_recipe(path, overrides=["replay.max_staleness=none"], profile="cpu")
    assert loaded.run_config.replay.max_staleness is None


def test_profile_is_laid_over_the_base(tmp_path):
    text = BASE + "max_steps = 1\n[profiles.cpu.trainer]\nmax_steps = 2\n[profiles.gpu.trainer]\nmax_steps = 3\n"
    path = write_recipe(tmp_path, text)
    assert load_recipe(path, profile="cpu").run_config.trainer.max_steps == 2
    assert load_recipe(path, profile="gpu").run_config.trainer.max_steps == 3


def test_extends_reads_the_other_first_and_own_settings_beat_its_profile(tmp_path):
    write_recipe(tmp_path, 'name = "base"\nseed = 5\n' + BASE + "[profiles.cpu.sync]\nperiod = 7\n", name="base")
    child = write_recipe(tmp_path, 'extends = "base.toml"\n[sync]\nperiod = 3\n', name="child")
    loaded = load_recipe(child, profile="cpu")
    assert loaded.run_config.sync.period == 3
    assert loaded.run_config.seed == 5
    assert loaded.run_config.name == "child"
    assert [source.name for source in loaded.sources] == ["base.toml", "child.toml"]


def test_problem_in_an_extended_recipe_names_that_file(tmp_path):
    base = write_recipe(tmp_path, BASE + "max_steps = 0\n", name="base")
    child = write_recipe(tmp_path, 'extends = "base.toml"\n', name="child")
    (problem,) = problems_of(child)
    assert problem.startswith(f"{base}:{line_of(base, 'max_steps = 0')}: ")


def test_extends_in_a_circle_is_refused(tmp_path):
    write_recipe(tmp_path, 'extends = "b.toml"\n', name="a")
    b = write_recipe(tmp_path, 'extends = "a.toml"\n', name="b")
    (problem,) = problems_of(b)
    assert "b.toml -> a.toml -> b.toml" in problem


def test_extends_of_a_missing_file_is_refused_with_its_line(tmp_path):
    path = write_recipe(tmp_path, 'seed = 1\nextends = "nowhere.toml"\n')
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:2: ")
    assert "nowhere.toml" in problem


def test_unknown_profile_is_refused(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path, BASE + "[profiles.gpus.trainer]\nmax_steps = 1\n"))
    assert "profiles.gpus" in problem
    assert "did you mean 'gpu'?" in problem


@pytest.mark.parametrize("text", ["profiles = 3\n", "profiles.cpu = 3\n", 'kind = "rum"\n', "extends = 3\n"])
def test_recipe_keys_of_the_wrong_shape_are_refused_with_their_line(tmp_path, text):
    path = write_recipe(tmp_path, text + BASE)
    assert problems_of(path)[0].startswith(f"{path}:1: ")


def test_text_that_is_not_toml_is_refused_with_its_place(tmp_path):
    path = write_recipe(tmp_path, "[task]\nkind = fake\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:2:")
    assert "not valid TOML" in problem


def test_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "\xe9"\n')
    assert "not UTF-8" in problems_of(str(path))[0]


def test_unknown_recipe_name_is_refused_with_a_suggestion():
    (problem,) = problems_of("gsm8kk")
    assert "did you mean 'gsm8k'?" in problem
    assert "smoke" in problem


def test_missing_recipe_file_is_refused(tmp_path):
    assert "does not exist" in problems_of(str(tmp_path / "none.toml"))[0]


def test_warnings_are_sentences_and_do_not_refuse(tmp_path):
    loaded = load_recipe(write_recipe(tmp_path), overrides=["searchers.top_p=0.8"], profile="cpu")
    assert any(w.startswith("--set: searchers.top_p = 0.8 renormalises") for w in loaded.warnings)


def test_profile_gpu_warns_of_searchers_on_ray_without_one(tmp_path):
    overrides = ["searchers.launcher=ray", "searchers.engine=transformers"]
    for profile in PROFILES:
        loaded = load_recipe(write_recipe(tmp_path), overrides=overrides, profile=profile)
        assert any("asks for no GPU" in warning for warning in loaded.warnings) == (profile == "gpu")


def test_resolved_json_is_read_back_as_the_same_configuration(tmp_path):
    config = load_recipe(write_recipe(tmp_path), profile="cpu").run_config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert json.loads(config.model_dump_json())["runs_dir"] == "runs"


SFT = """
kind = "sft"
[task]
kind = "fake"
[[stages]]
name = "one"
mixture = { worked = 0.4, bare = 0.6 }
num_tokens = 1000
learning_rate = 1e-3
"""


def test_sft_recipe_gives_an_sft_config(tmp_path):
    loaded = load_recipe(write_recipe(tmp_path, SFT), profile="cpu")
    assert loaded.kind == "sft"
    assert isinstance(loaded.sft_config, SftConfig)
    with pytest.raises(ConfigError, match="use `tbactl sft recipe`"):
        _ = loaded.run_config


def test_run_recipe_is_refused_as_sft(tmp_path):
    with pytest.raises(ConfigError, match="use `tbactl run recipe`"):
        _ = load_recipe(write_recipe(tmp_path), profile="cpu").sft_config


def test_sft_problems_are_all_reported_with_their_place(tmp_path):
    text = SFT.replace("0.6", "0.5") + 'lr_schedule = "cosin"\n'
    path = write_recipe(tmp_path, text)
    problems = problems_of(path, "max_tokens=9000", "architecture.hidden_size=3", "policy.path=x/y")
    assert len(problems) == 5, problems
    assert any("stages.0.mixture: the shares add up to 0.9, not to 1" in p for p in problems)
    assert any(
        p.startswith(f"{path}:{line_of(path, 'lr_schedule = ' + chr(34) + 'cosin' + chr(34))}: ") for p in problems
    )


@pytest.mark.parametrize("setting", ["policy.path", "replay.embedder"])
def test_directory_that_does_not_exist_is_refused(tmp_path, setting):
    (problem,) = problems_of(write_recipe(tmp_path), f"{setting}={tmp_path}/nowhere")
    assert setting in problem and "there is no such directory" in problem


def test_encoder_that_no_package_offers_is_refused_with_a_suggestion(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "replay.embedder=package:all-minilm-l6")
    assert "replay.embedder = 'package:all-minilm-l6': no package offers an encoder 'all-minilm-l6'" in problem
    assert "did you mean 'all-minilm-l6-v2'?" in problem


def test_policy_of_a_task_that_ships_none_is_refused(tmp_path):
    (problem,) = problems_of(write_recipe(tmp_path), "policy.path=task:none")
    assert problem.startswith("--set: policy.path = 'task:none'")


def test_extends_finds_a_shipped_recipe_and_a_byte_order_mark_is_no_mistake(tmp_path):
    path = write_recipe(tmp_path, '\ufeffextends = "smoke.toml"\nseed = 5\n', name="mine")
    loaded = load_recipe(path, profile="cpu")
    assert (loaded.config.seed, loaded.sources[0].name) == (5, "smoke.toml")


@pytest.mark.parametrize(
    "override", ["searchers.num_searchers=1025", "trainer.num_ranks=1025", "trainer.max_steps=1000000001"]
)
def test_numbers_beyond_reason_are_refused(tmp_path, override):
    (problem,) = problems_of(write_recipe(tmp_path), override)
    assert "must be at most" in problem

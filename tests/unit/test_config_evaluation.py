import pytest

from tbactl.config.evaluation_loading import evaluation_config
from tbactl.config.layout import RunLayout
from tbactl.config.loading import load_recipe
from tbactl.errors import CheckpointError, ConfigError
from tests.support.recipes import write_recipe

GIVEN = {"task.kind": "fake", "engine": "fake"}


@pytest.fixture
def run(tmp_path):
    overrides = ["searchers.max_new_tokens=77", "evaluation.num_prompts=33", "seed=4", "evaluation.period=2"]
    config = load_recipe(write_recipe(tmp_path), overrides=overrides, profile="cpu").run_config
    layout = RunLayout(tmp_path / "run")
    layout.config.mkdir(parents=True)
    layout.resolved_config.write_text(config.model_dump_json())
    (layout.checkpoint(10) / "policy").mkdir(parents=True)
    return layout


def test_evaluation_of_a_hub_name_uses_defaults():
    config = evaluation_config("some/model", given=GIVEN)
    assert (config.checkpoint, config.num_samples, config.temperature, config.harness) == (
        "some/model",
        1,
        None,
        "native",
    )


def test_evaluation_of_a_run_and_of_its_checkpoints_takes_the_runs_settings(run):
    for path in (run.root, run.checkpoint(10), run.checkpoint(10) / "policy"):
        config = evaluation_config(str(path), given={})
        assert (config.task.kind, config.engine) == ("fake", "fake")
        assert (config.limit, config.seed, config.max_new_tokens) == (33, 4, 77)


def test_options_and_overrides_beat_the_runs_settings(run):
    config = evaluation_config(str(run.root), given={"limit": 5}, overrides=["max_new_tokens=9", "limit=6"])
    assert (config.limit, config.max_new_tokens) == (6, 9)


def test_completions_end_as_in_the_run_unless_another_task_is_evaluated(run):
    config = load_recipe(
        write_recipe(run.root), overrides=['searchers.stop_strings=["\\n", "Q:"]', "evaluation.period=2"], profile="cpu"
    ).run_config
    assert config.searchers.stop_strings == ("\n", "Q:")
    run.resolved_config.write_text(config.model_dump_json())
    assert evaluation_config(str(run.root), given={}).stop_strings == ("\n", "Q:")
    assert evaluation_config(str(run.root), given={"task.kind": "fake"}).stop_strings == ("\n", "Q:")
    assert evaluation_config(str(run.root), given={"task.kind": "math"}).stop_strings == ()
    assert evaluation_config(str(run.root), given={}, overrides=["stop_strings=[]"]).stop_strings == ()


def test_several_samples_get_a_temperature_unless_one_is_given():
    assert evaluation_config("m", given={**GIVEN, "num_samples": 4}).temperature > 0
    assert evaluation_config("m", given={**GIVEN, "num_samples": 4, "temperature": 0.3}).temperature == 0.3


def test_all_problems_of_an_evaluation_are_reported_by_option():
    given = {
        "task.kind": "fakee",
        "limit": -1,
        "num_samples": 2,
        "temperature": 0.0,
        "harness": "native",
        "engine": "vlm",
    }
    with pytest.raises(ConfigError) as caught:
        evaluation_config("m", given=given, overrides=["limitt=3"])
    problems = caught.value.problems
    assert len(problems) == 5, problems
    assert any(p.startswith("--task: task.kind: unknown task 'fakee'") for p in problems)
    assert any(p.startswith("--engine: engine: unknown engine 'vlm'") for p in problems)
    assert any(p.startswith("--limit: limit = -1: must be at least 0") for p in problems)
    assert any(p.startswith("--temperature: temperature = 0 gives num_samples = 2 equal") for p in problems)
    assert any("did you mean 'limit'?" in p for p in problems)


def test_evaluation_without_a_task_says_that_it_is_missing():
    with pytest.raises(ConfigError, match="task is missing"):
        evaluation_config("m", given={"engine": "fake"})


def test_missing_data_file_and_checkpoint_directory_are_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        evaluation_config(f"{tmp_path}/none", given={**GIVEN, "data": tmp_path / "none.jsonl"})
    assert len(caught.value.problems) == 2


def test_damaged_run_configuration_is_a_checkpoint_error(run):
    run.resolved_config.write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        evaluation_config(str(run.root), given={})


@pytest.mark.parametrize("task", ["preference", "redteam"])
def test_lm_eval_is_refused_for_rewards_that_are_no_exact_match(task):
    given = GIVEN | {"task.kind": task, "harness": "lm-eval"}
    with pytest.raises(ConfigError, match=f"harness = lm-eval does not measure the task '{task}'.*native"):
        evaluation_config("some/model", given=given)


def test_temperature_zero_reaches_the_evaluation_as_asked_for():
    assert "temperature" in evaluation_config("some/model", given=GIVEN | {"temperature": 0.0}).model_fields_set
    assert "temperature" not in evaluation_config("some/model", given=GIVEN).model_fields_set

from __future__ import annotations

import json

import pytest

from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.sections import TaskSection
from tbactl.config.tasks import build_task
from tbactl.engines.stop_strings import with_stop_strings
from tbactl.errors import ConfigError
from tbactl.evaluation.evaluate import as_long_as_needed, evaluate, fitted, task_options
from tbactl.types import Completion, SamplingParams

FAKE = TaskSection(kind="fake")


@pytest.fixture
def policy(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return tmp_path


def config(**settings):
    return EvaluationConfig.model_validate({"task": FAKE, "checkpoint": "x"} | settings)


def test_fitted_default_lengths_are_halved_to_the_policys_positions(policy):
    result = fitted(config(), policy=policy)
    assert (result.max_prompt_tokens, result.max_new_tokens) == (255, 255)


def test_fitted_leaves_alone_what_was_asked_for_and_what_fits(policy, tmp_path):
    assert fitted(config(max_new_tokens=600), policy=policy).max_new_tokens == 600
    (policy / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    assert fitted(config(), policy=policy) == config()
    assert fitted(config(), policy=tmp_path / "a-hub-name") == config()


def test_completions_are_as_short_as_the_tasks_own_unless_another_length_was_asked_for(policy):
    def length(**settings):
        task = TaskSection(kind="redteam", options=settings.pop("options", {}))
        asked = config(task=task, **settings)
        return as_long_as_needed(asked, fitted(asked, policy=policy)).max_new_tokens

    assert length() == 20
    assert length(options={"max_new_tokens": 40}) == 40
    assert length(max_new_tokens=30) == 30
    assert length(max_new_tokens=512) == 512, "the default is a length like any other when it is asked for"
    assert length(options={"max_new_tokens": 400}) == 255
    assert as_long_as_needed(config(), config()) == config()


def test_task_options_take_what_the_evaluation_says(tmp_path):
    math = config(task=TaskSection(kind="math", options={"difficulty": "all"}), num_samples=4, temperature=0.5)
    options = task_options(math)
    assert options == {"difficulty": "all", "num_samples": 4, "temperature": 0.5, "max_new_tokens": 512}


def test_temperature_zero_is_taken_where_it_is_asked_for():
    redteam = TaskSection(kind="redteam")
    assert task_options(config(task=redteam, temperature=0.0))["temperature"] == 0.0
    assert "temperature" not in task_options(config(task=redteam)), "the task's own default is another"
    read_back = EvaluationConfig.model_validate_json(config(task=redteam).model_dump_json())
    assert "temperature" not in task_options(read_back), "nobody has asked for one"


def test_math_is_greedy_at_temperature_zero_as_without_one():
    build_task("math", task_options(config(task=TaskSection(kind="math"), temperature=0.0)))


def test_task_options_refuses_what_the_task_cannot_do():
    with pytest.raises(ConfigError, match="num_samples = 4"):
        task_options(config(num_samples=4))


def test_completions_of_an_evaluation_end_at_its_stop_strings(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    asked, limits = [], []

    def answer(engine, prompts, num_completions, sampling, **limit):
        asked.append(sampling)
        limits.append(limit["max_prompt_tokens"])
        failed = Completion(token_ids=(), logprobs=(), text="", finish_reason="abort")
        return [[failed] * num_completions for _ in prompts]

    monkeypatch.setattr("tbactl.evaluation.evaluate.generate", answer)
    monkeypatch.setattr("tbactl.testing.fake_engine.FakePolicy.initial", lambda directory: None)
    for stop_strings in ((), ("\n",)):
        evaluate(config(checkpoint=str(tmp_path), engine="fake", limit=2, stop_strings=stop_strings))
        assert asked.pop().stop_strings == stop_strings
    assert limits == [512, 512], "longer prompts are refused as they are in training"


def test_stop_strings_that_a_task_asks_for_are_its_own():
    asked = SamplingParams(max_new_tokens=3, stop_strings=("Q:",))
    assert with_stop_strings(asked, ("\n",)) is asked
    assert with_stop_strings(SamplingParams(max_new_tokens=3), ("\n",)).stop_strings == ("\n",)


def test_evaluate_with_an_unknown_task_names_those_that_are_installed():
    with pytest.raises(ConfigError, match="did you mean 'math'"):
        evaluate(config(task=TaskSection(kind="mth"), checkpoint="organisation/model"))

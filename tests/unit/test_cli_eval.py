"""`tbactl eval` and `tbactl sft` up to the child they start, which is replaced here."""

import json
from pathlib import Path

import pytest

from tbactl.cli.main import main
from tests.support.recipes import write_recipe

RESULT = {
    "task": "fake",
    "num_prompts": 20,
    "seconds": 1.5,
    "metrics": {"accuracy": 0.25},
    "intervals": {"accuracy": [0.1, 0.5]},
    "template": "Problem: {question}\n" + 200 * "x",
    "num_shots": 0,
}
SFT = """
kind = "sft"
[task]
kind = "fake"
[[stages]]
name = "one"
mixture = { worked = 1.0 }
num_tokens = 1000
learning_rate = 1e-3
"""


@pytest.fixture
def children(tmp_path, monkeypatch):
    """What was started: (module, configuration, other arguments)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    calls = []

    def run_child(module, arguments, *, log, scratch=None):
        calls.append((module, json.loads(Path(arguments[1]).read_text()), list(arguments[2:])))
        return json.dumps(RESULT) + "\n"

    monkeypatch.setattr("tbactl.cli.commands.eval.run_child", run_child)
    monkeypatch.setattr("tbactl.cli.commands.sft.run_child", run_child)
    return calls


def test_eval_hands_its_options_to_the_child_and_prints_a_table(children, capsys):
    options = ["--limit", "20", "--num-samples", "4", "--temperature", "0.5", "--engine", "fake", "--set", "seed=3"]
    assert main(["eval", "--task", "fake", "some/model", *options]) == 0
    ((module, config, _),) = children
    assert module == "tbactl.evaluation"
    assert (config["checkpoint"], config["task"]["kind"], config["engine"]) == ("some/model", "fake", "fake")
    assert (config["limit"], config["num_samples"], config["temperature"], config["seed"]) == (20, 4, 0.5, 3)
    out = capsys.readouterr().out
    assert "accuracy" in out
    assert "0.2500" in out
    assert "0.1000 .. 0.5000" in out
    assert '0 solved examples in the prompt; template "Problem: {question}\\nxxx' in out and out.endswith("x ...\n")
    assert "max_new_tokens" not in config, "what nobody asked for is left to the evaluation"


def test_eval_with_json_prints_the_result_alone(children, capsys):
    assert main(["eval", "--task", "fake", "some/m", "--engine", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_eval_prints_results_of_lm_eval_by_task(children, monkeypatch, capsys):
    results = {"results": {"gsm8k": {"alias": "gsm8k", "exact_match,none": 0.5, "exact_match_stderr,none": 0.1}}}
    monkeypatch.setattr("tbactl.cli.commands.eval.run_child", lambda *_, **__: json.dumps(results))
    monkeypatch.setattr("tbactl.config.evaluation_loading.find_spec", lambda name: object())
    assert main(["eval", "--task", "fake", "some/m", "--engine", "fake", "--harness", "lm-eval"]) == 0
    out = capsys.readouterr().out
    assert "exact_match" in out
    assert "0.5000" in out


def test_eval_with_wrong_options_starts_nothing(children, capsys):
    assert main(["eval", "--task", "fakee", "some/m", "--limit", "-1", "--engine", "fake"]) == 3
    assert capsys.readouterr().err.startswith("error: 2 problems")
    assert children == []


def test_eval_of_a_child_without_a_result_is_a_failed_child(children, monkeypatch):
    monkeypatch.setattr("tbactl.cli.commands.eval.run_child", lambda *_, **__: "")
    assert main(["eval", "--task", "fake", "some/m", "--engine", "fake"]) == 5


def test_sft_hands_the_resolved_recipe_to_the_child(children, tmp_path, capsys):
    path = write_recipe(tmp_path, SFT)
    assert main(["sft", path, "--output", "there/policy-1", "--resume", "--set", "seed=2"]) == 0
    ((module, config, others),) = children
    assert (module, others) == ("tbactl.sft", ["--resume"])
    assert (config["runs_dir"], config["name"], config["seed"]) == ("there", "policy-1", 2)
    assert capsys.readouterr().out.splitlines()[-1] == "policy: there/policy-1/policy"


def test_sft_dry_run_starts_nothing(children, tmp_path, capsys):
    assert main(["sft", write_recipe(tmp_path, SFT), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "runs/recipe/policy"
    assert children == []


def test_sft_of_a_recipe_for_runs_is_refused(children, tmp_path):
    assert main(["sft", write_recipe(tmp_path)]) == 3
    assert children == []


@pytest.mark.parametrize("name", ["nope", "runs/nope", "some/deep/er", "./x/y"])
def test_eval_of_what_is_not_there_starts_nothing(children, capsys, name):
    Path("runs").mkdir()
    assert main(["eval", "--task", "fake", name]) == 3
    assert f"there is no run, checkpoint or directory '{name}'" in capsys.readouterr().err
    assert children == []


def test_eval_of_a_hub_name_offline_starts_nothing(children, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["eval", "--task", "fake", "some/m", "--engine", "fake"]) == 3
    (tmp_path / "models--some--m").mkdir()
    assert main(["eval", "--task", "fake", "some/m", "--engine", "fake"]) == 0


def test_sft_output_may_have_spaces_and_quotes(children, tmp_path):
    assert main(["sft", write_recipe(tmp_path, SFT), "--output", "my 'dir'/a \"policy\""]) == 0
    ((_, config, _),) = children
    assert (config["runs_dir"], config["name"]) == ("my 'dir'", 'a "policy"')

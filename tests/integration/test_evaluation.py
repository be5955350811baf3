"""`python -m tbactl.evaluation` with the embedded policy: both harnesses, the same prompts, the same figure."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.sections import TaskSection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 24


def evaluate(tmp_path, **settings):
    config = EvaluationConfig(
        task=TaskSection(kind="math"),
        checkpoint="task:gsm8k-tiny",
        limit=LIMIT,
        max_prompt_tokens=200,
        max_new_tokens=100,
        **settings,
    )
    path = tmp_path / "evaluation.json"
    path.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "tbactl.evaluation", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.fault("I-81")
def test_lm_eval_over_our_engine_gives_the_tasks_own_figure_in_its_own_layout(tmp_path):
    native = evaluate(tmp_path, engine="vllm", output=tmp_path / "native")
    harness = evaluate(tmp_path, engine="vllm", harness="lm-eval", output=tmp_path / "harness")

    assert native["num_prompts"] == LIMIT
    assert harness["results"]["tbactl_math"]["exact_match,none"] == native["metrics"]["accuracy"]
    (results,) = (tmp_path / "harness").rglob("results_*.json")
    (samples,) = (tmp_path / "harness").rglob("samples_tbactl_math_*.jsonl")
    assert json.loads(results.read_text())["results"] == harness["results"]
    assert len(samples.read_text().splitlines()) == LIMIT
    assert json.loads((tmp_path / "native" / "result.json").read_text())["metrics"] == native["metrics"]


@pytest.mark.fault("I-81")
def test_both_engines_give_the_same_greedy_figure(tmp_path):
    accuracies = [evaluate(tmp_path, engine=engine)["metrics"]["accuracy"] for engine in ("vllm", "transformers")]
    assert accuracies[0] == accuracies[1]

"""Greedy held-out accuracy of many weights of one policy, with one engine: a child process of `time_to_accuracy.py`.

    python -m benchmarks.policy_accuracy --num-prompts 512 OUTPUT.json DIRECTORY...

Each directory holds a policy in Hugging Face form, of the architecture of the start policy of recipe `gsm8k`; that one
is measured first, under the name "start". All answer the same held-out problems. OUTPUT maps directories to accuracies
and is written after each; what it holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tbactl import registry
from tbactl.config.engine import EngineConfig
from tbactl.config.loading import load_recipe
from tbactl.config.sections import RunConfig
from tbactl.config.tasks import build_task, shipped_policy
from tbactl.engines.generate import generate
from tbactl.ipc.child import die_with_parent, run_and_leave
from tbactl.protocols import Engine
from tbactl.supervision.atomic import write_text
from tbactl.weight_sync.weights_file import write_safetensors

START = "start"
MAX_CONCURRENT_SEQUENCES = 128


def main() -> int:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("directories", type=Path, nargs="*")
    parser.add_argument("--num-prompts", type=int, required=True)
    parser.add_argument("--difficulty", default="easy", help="of the problems")
    arguments = parser.parse_args()
    die_with_parent()
    measure(
        arguments.directories,
        run=load_recipe(
            "gsm8k", profile="cpu", overrides=[f'task.options.difficulty="{arguments.difficulty}"']
        ).run_config,
        output=arguments.output,
        num_prompts=arguments.num_prompts,
    )
    return 0


def measure(directories: Sequence[Path], *, run: RunConfig, output: Path, num_prompts: int) -> None:
    """Accuracy of the start policy and of each directory's weights, in that order."""
    accuracies = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    start = shipped_policy(run.task.kind, run.policy.path)
    policies = {START: start} | {str(directory): directory for directory in directories}
    missing = {name: directory for name, directory in policies.items() if name not in accuracies}
    if not missing:
        return
    task = build_task(run.task.kind, run.task.options)
    engine: Engine = registry.load("tbactl.engines", run.searchers.engine)(
        EngineConfig(
            policy_directory=start,
            dtype=run.policy.dtype,
            max_model_tokens=run.searchers.max_prompt_tokens + run.searchers.max_new_tokens,
            max_concurrent_sequences=MAX_CONCURRENT_SEQUENCES,
        )
    )
    for version, (name, directory) in enumerate(missing.items(), start=1):
        load(directory, engine=engine, version=version)
        result = task.evaluate(partial(generate, engine), limit=num_prompts, seed=0, policy_version=version)
        accuracies[name] = result.metrics["accuracy"]
        write_text(output, json.dumps(accuracies, indent=2))
    engine.close()
    task.close()


def load(directory: Path, *, engine: Engine, version: int) -> None:
    """Give an engine the weights of a directory."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        write_safetensors(Path(file.name), model.state_dict())
        engine.load_policy(Path(file.name), version=version)


if __name__ == "__main__":
    run_and_leave(main)

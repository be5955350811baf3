"""`python -m tbactl.sft --config resolved.json [--resume]`: what `tbactl sft` starts."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
from pydantic import ValidationError
from transformers.utils import logging as transformers_logging

from tbactl import registry
from tbactl.clock import SystemClock
from tbactl.config.sections import SftConfig
from tbactl.errors import ConfigError, TaskError, TbactlError
from tbactl.ipc.child import run_and_leave
from tbactl.matmul import use_full_vector_width
from tbactl.sft.examples import ExampleSource
from tbactl.sft.loop import train


def main(arguments: list[str] | None = None) -> int:
    """Train as the resolved configuration says; the result is the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tbactl.sft")
    parser.add_argument("--config", type=Path, required=True, help="resolved configuration, JSON")
    parser.add_argument("--resume", action="store_true", help="continue at the last finished checkpoint")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    transformers_logging.disable_progress_bar()
    try:
        config = _read_config(options.config)
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        use_full_vector_width()
        policy = train(config, source=_example_source(config), clock=SystemClock(), resume=options.resume)
    except TbactlError as error:
        print(error)  # standard output: what started this process makes it its own message
        return error.exit_code
    print(policy)
    return 0


def _read_config(path: Path) -> SftConfig:
    try:
        return SftConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"cannot use {path}: {error}") from error


def _example_source(config: SftConfig) -> ExampleSource:
    task = registry.load("tbactl.tasks", config.task.kind)(**config.task.options)
    if not hasattr(task, "sft_examples"):
        raise TaskError(f"the task '{config.task.kind}' has no examples for supervised training (`sft_examples`)")
    return task.sft_examples


if __name__ == "__main__":
    run_and_leave(main)

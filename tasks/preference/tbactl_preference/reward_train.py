"""`python -m tbactl_preference.reward_train --config resolved.json`: what `tbactl reward train` starts."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import TextIO

import torch
from pydantic import ValidationError
from transformers.utils import logging as transformers_logging

from tbactl.config.reward import RewardConfig
from tbactl.errors import CapacityError, ConfigError, TbactlError, is_out_of_space
from tbactl_preference.reward_card import check_matplotlib
from tbactl_preference.reward_training import train_reward


def main(arguments: list[str] | None = None) -> int:
    """Train as the resolved configuration says; the result is the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tbactl_preference.reward_train")
    parser.add_argument("--config", type=Path, required=True, help="resolved configuration, JSON")
    options = parser.parse_args(arguments)
    # Libraries print to stdout as they like; the result must stand there alone.
    result_stream = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    transformers_logging.disable_progress_bar()
    try:
        check_matplotlib()
        config = _read_config(options.config)
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        result = _trained(config)
    except TbactlError as error:
        _say(result_stream, str(error))  # what started this process makes it its own message
        return error.exit_code
    _say(result_stream, json.dumps({"reward_model": str(result.directory), "held_out": result.held_out.as_dict()}))
    return 0


def _say(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def _trained(config: RewardConfig):  # noqa: ANN202
    try:
        return train_reward(config)
    except OSError as error:
        kind = CapacityError if is_out_of_space(error) else ConfigError
        raise kind(f"{config.runs_dir / config.name} cannot be written: {error}") from error


def _read_config(path: Path) -> RewardConfig:
    try:
        return RewardConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"cannot use {path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())

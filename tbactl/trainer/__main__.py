"""`python -m tbactl.trainer --config FILE`: one trainer rank, started by the supervisor."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tbactl.config.layout import ProcessConfig
from tbactl.errors import ConfigError, TbactlError
from tbactl.ipc.child import die_with_parent, report, run_and_leave
from tbactl.trainer.session import run_trainer


def main(arguments: list[str] | None = None) -> int:
    """Train as configured; the result is the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tbactl.trainer")
    parser.add_argument("--config", type=Path, required=True, help="a ProcessConfig, JSON")
    path: Path = parser.parse_args(arguments).config
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        run_trainer(_read(path))
    except TbactlError as error:
        report(f"trainer: {error}")
        return error.exit_code
    return 0


def _read(path: Path) -> ProcessConfig:
    try:
        return ProcessConfig.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use {path}: {error}") from error


if __name__ == "__main__":
    run_and_leave(main)

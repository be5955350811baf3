"""Weights & Biases, when `logging.wandb_project` is set and the package is installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tbactl.errors import ConfigError


class WandbLogger:
    """Implements `Logger`. One W&B run for each run directory: a resumed run continues it."""

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, run_directory: Path, resolved_config: dict[str, Any]) -> None:
        """Log in and open the run.

        Raises:
            ConfigError: the package is missing, or W&B refuses.
        """
        project = resolved_config["logging"]["wandb_project"]
        try:
            wandb = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"logging.wandb_project = '{project}' needs the package 'wandb': `pip install 'tbactl[wandb]'`, or "
                f"leave the setting away."
            ) from error
        try:
            self._run = wandb.init(
                project=project,
                name=run_directory.name,
                id=run_directory.name,
                resume="allow",
                dir=str(run_directory),
                config=resolved_config,
            )
        except Exception as error:  # its own exceptions come and go between versions
            raise ConfigError(f"logging.wandb_project = '{project}': W&B cannot start: {error}") from error

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Send metrics."""
        assert self._run is not None, "start it first"
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()

"""All loggers of a run as one. Fails loudly at the start; a logger that fails later is left out, and said so."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbactl import registry
from tbactl.config.sections import LoggingSection
from tbactl.protocols import Logger

logger = logging.getLogger(__name__)


def logger_names(section: LoggingSection) -> list[str]:
    """Names in the registry of what a configuration asks for."""
    names = ["jsonl"]
    if section.tensorboard:
        names.append("tensorboard")
    if section.wandb_project is not None:
        names.append("wandb")
    return names


class FanOut:
    """Implements `Logger` by passing on to others. Training never ends because a place for metrics is gone."""

    def __init__(self, loggers: Mapping[str, Logger]) -> None:
        self._loggers = dict(loggers)

    @classmethod
    def of(cls, section: LoggingSection) -> FanOut:
        """The loggers that a configuration asks for.

        Raises:
            ConfigError: one needs a package that is not installed.
        """
        return cls({name: registry.load("tbactl.loggers", name)() for name in logger_names(section)})

    def start(self, run_directory: Path, resolved_config: dict[str, Any]) -> None:
        """Open all.

        Raises:
            ConfigError: one cannot work.
        """
        for member in self._loggers.values():
            member.start(run_directory, resolved_config)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Pass metrics on."""
        for name in list(self._loggers):
            self._try(name, "log_metrics", (step, metrics))

    def close(self) -> None:
        """Close all."""
        for name in list(self._loggers):
            self._try(name, "close", ())

    def _try(self, name: str, method: str, arguments: Sequence[Any]) -> None:
        try:
            getattr(self._loggers[name], method)(*arguments)
        except Exception as error:
            logger.error("logger=%s failed in %s and is left out from now on: %s", name, method, error)
            del self._loggers[name]

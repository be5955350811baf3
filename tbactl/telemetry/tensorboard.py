"""TensorBoard event files under RUN/tensorboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from tbactl.config.layout import RunLayout


class TensorBoardLogger:
    """Implements `Logger`. The run's configuration is shown as text."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    def start(self, run_directory: Path, resolved_config: dict[str, Any]) -> None:
        """Open an event file."""
        self._writer = SummaryWriter(str(RunLayout(run_directory).tensorboard), flush_secs=10)
        self._writer.add_text("config", f"```json\n{json.dumps(resolved_config, indent=2, default=str)}\n```")

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Write scalars."""
        assert self._writer is not None, "start it first"
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

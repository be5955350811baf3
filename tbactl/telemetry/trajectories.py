"""trajectories.jsonl: a few of each step's trajectories, as they were trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tbactl.config.layout import RunLayout
from tbactl.telemetry.lines import JsonLines
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)


class TrajectoryLog:
    """Writes samples; one that cannot be written ends the log, not the training.

    Completions are data: whoever shows them on a terminal must escape them.
    """

    def __init__(self, run_directory: Path, *, num_per_step: int) -> None:
        self._num_per_step = num_per_step
        self._lines = JsonLines(RunLayout(run_directory).trajectories)

    def log(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Write trajectories of different prompts, of each step others. `step` is the one that trained on them."""
        try:
            self._write(step, groups)
        except (OSError, ValueError) as error:  # ValueError: closed
            logger.error("no more trajectories are written: %s", error)
            self._num_per_step = 0

    def _write(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        for number in range(min(self._num_per_step, sum(len(group.trajectories) for group in groups))):
            group = groups[number % len(groups)]
            trajectory = group.trajectories[(step + number // len(groups)) % len(group.trajectories)]
            completion = trajectory.completion
            self._lines.append(
                {
                    "step": step,
                    "prompt_id": group.prompt_id,
                    "prompt": group.prompt_text,
                    "completion": completion.text,
                    "reward": trajectory.reward,
                    "version": completion.last_version,
                    "finish_reason": completion.finish_reason,
                    "num_tokens": len(completion.token_ids),
                    "searcher": group.searcher,
                    "uid": trajectory.uid,
                }
            )

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

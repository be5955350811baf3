"""What must hold for a run to be resumed, asked before anything is written."""

from __future__ import annotations

from pathlib import Path

from tbactl.config.layout import RunLayout
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError


def check_resume(run_directory: Path, config: RunConfig) -> None:
    """Refuse a resume that has nothing to continue from, or nothing left to do.

    Raises:
        CheckpointError: the run holds no complete checkpoint.
        ConfigError: the run is still alive, here or elsewhere, or its newest checkpoint has reached
            `trainer.max_steps`.
    """
    from tbactl.supervision.run_directory import latest_checkpoint, resumable
    from tbactl.supervision.run_lock import check_unsupervised

    resumable(run_directory)
    check_unsupervised(run_directory)
    step = int(latest_checkpoint(RunLayout(run_directory)).name.removeprefix("step_"))
    if step >= config.trainer.max_steps:
        raise ConfigError(
            f"the run has reached trainer.max_steps = {config.trainer.max_steps}: its newest checkpoint is of step "
            f"{step}; raise it with --set trainer.max_steps=N."
        )

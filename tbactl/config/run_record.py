"""RUN/run.json: which run this is, who runs it, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tbactl.config.hardware import Profile
from tbactl.config.layout import RunLayout
from tbactl.config.sections import RunConfig, Section
from tbactl.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Outcome = Literal["prepared", "running", "finished", "stopped", "interrupted", "terminated", "failed"]


class RunRecord(Section):
    """Identity and outcome of a run. A resumed run replaces it; what happened before stands in events.jsonl."""

    name: str
    """`name` of the configuration."""
    recipe: str
    """What the user asked to run."""
    profile: Profile
    """Profile of the recipe."""
    attempt: int
    """1, and one more with each resume."""
    pid: Annotated[int, Field(ge=1)]
    """Process id of the supervisor."""
    pid_start_ticks: int
    """When that process started, in clock ticks since boot: with it a reused pid is told from the supervisor."""
    shm_directory: Path
    """Where the rings, the weights and the control page lie while the run lives."""
    started_at: str
    """UTC, ISO 8601."""
    outcome: Outcome = "prepared"
    """`prepared`: written by a dry run; nothing was started."""
    exit_code: int | None = None
    message: str = ""
    """Why it failed."""
    ended_at: str | None = None
    duration_s: float | None = None
    """From the supervisor's start to its end, in this attempt."""
    training_s: float | None = None
    """Of this attempt, from the moment all processes were ready to the last optimizer step's end, or the run's."""
    steps: int | None = None
    """Optimizer steps done, those before a resume included."""
    completions: int | None = None
    """Completions generated in this attempt."""


def read_run_record(run_directory: Path) -> RunRecord:
    """The record of a run directory.

    Raises:
        ConfigError: it is not a run directory.
    """
    path = RunLayout(run_directory).identity
    if not path.exists():
        raise ConfigError(
            f"{run_directory} is not a run directory: it has no run.json. Name one that `tbactl run` made "
            f"(runs/latest is the newest)."
        )
    return _read(path, RunRecord)


def read_run_config(run_directory: Path) -> RunConfig:
    """The settings of a run, to look at it.

    Raises:
        ConfigError: they are missing, damaged, or of another version of tbactl.
    """
    return _read(RunLayout(run_directory).resolved_config, RunConfig)


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise ConfigError(
            f"{path} is damaged or of another version of tbactl: {error.error_count()} problem(s), first "
            f"'{error.errors()[0]['msg']}'."
        ) from error

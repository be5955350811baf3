"""Options that several commands share, and the way from what a user typed to a run directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl.config.hardware import PROFILES, Profile
from tbactl.errors import ConfigError

Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting, for example --set trainer.max_steps=20. Repeatable; the last wins.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read; errors too.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live dashboard.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, the name of one under runs/, or 'latest'.")
]

RUNS_DIRECTORY = Path("runs")


def known_profile(name: str | None) -> Profile | None:
    """What `--profile` says.

    Raises:
        typer.BadParameter: there is no such profile.
    """
    for profile in PROFILES:
        if name == profile:
            return profile
    if name is not None:
        raise typer.BadParameter(f"'{name}' must be one of {', '.join(PROFILES)}", param_hint="--profile")
    return None


def command_app(**settings: Any) -> typer.Typer:
    """A Typer application for one command: plain help (fast), errors left to `main`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def find_run(name: str, *, runs_directory: Path = RUNS_DIRECTORY) -> Path:
    """The run directory that a user means: a path, a name under `runs_directory`, or "latest".

    Raises:
        ConfigError: there is none.
    """
    for candidate in (Path(os.path.expanduser(name)), runs_directory / name):
        if (candidate / "run.json").is_file():
            return candidate
    runs = newest_runs(runs_directory)
    if name == "latest" and runs:
        return runs[0]
    there_are = ", ".join(run.name for run in runs[:5]) or "none"
    raise ConfigError(
        f"there is no run '{name}', neither as a path nor in {runs_directory}/; newest runs: {there_are}."
    )


def newest_runs(runs_directory: Path = RUNS_DIRECTORY) -> list[Path]:
    """Run directories, the one that started last first; those of dry runs are none."""
    records = [path for path in runs_directory.glob("*/run.json") if not path.parent.is_symlink() and _has_run(path)]
    return [path.parent for path in sorted(records, key=lambda path: path.stat().st_ctime_ns, reverse=True)]


def _has_run(record: Path) -> bool:
    try:
        return json.loads(record.read_bytes())["outcome"] != "prepared"
    except (OSError, ValueError, LookupError, TypeError):
        return True  # damaged: whoever reads it says so

"""`tbactl run`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl import __version__
from tbactl.cli.arguments import AsJson, Overrides, Plain, command_app, find_run, known_profile
from tbactl.cli.output import plain, print_json
from tbactl.cli.plan import plan_lines
from tbactl.cli.resuming import check_resume
from tbactl.config.hub import missing_policy
from tbactl.config.loading import LoadedRecipe, load_recipe
from tbactl.config.packages import missing_packages
from tbactl.config.resume import load_resumed
from tbactl.config.run_record import read_run_record
from tbactl.config.runs_directory import make_runs_directory
from tbactl.errors import ConfigError

app = command_app()


@app.command()
def run(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Name of a shipped recipe (`tbactl recipes list`) or a TOML file."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 typer wants the default here and copies it
    profile: Annotated[
        str | None, typer.Option(metavar="cpu|gpu", help="Profile of the recipe; the default fits the hardware found.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and write the resolved configuration; start nothing.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue a run from its last checkpoint: a directory, a name, 'latest'."),
    ] = None,
    profile_trace: Annotated[
        bool, typer.Option("--profile-trace", help="Write what each process does when, as trace.json.")
    ] = False,
    plain_lines: Plain = False,
    as_json: AsJson = False,
) -> int:
    """Train a policy with TBA, as a recipe says.

    Searchers and trainer run as processes of their own; Ctrl-C once ends with a checkpoint, twice at once. Exit codes:
    0 finished, 3 wrong configuration, 4 task, 5 a process failed for good, 6 out of memory or /dev/shm, 7 checkpoint,
    130 interrupted.
    """
    if (recipe is None) == (resume is None):
        raise typer.BadParameter("give either a RECIPE or --resume RUN", param_hint="RECIPE")
    if profile_trace:
        overrides = [*overrides, "logging.profile_trace=true"]
    if resume is not None:
        if profile is not None:
            raise typer.BadParameter("a resumed run keeps its profile", param_hint="--profile")
        run_directory = find_run(resume)
        loaded = load_resumed(run_directory, overrides=overrides)
        check_resume(run_directory, loaded.run_config)
    else:
        assert recipe is not None
        run_directory = None
        loaded = load_recipe(recipe, overrides=overrides, profile=known_profile(profile))
    config = loaded.run_config
    if not as_json:
        _announce(loaded, resumed=run_directory)
    missing = [*missing_packages(config), *missing_policy(config)]
    if missing and not dry_run:
        raise ConfigError(*missing)
    if run_directory is None:
        make_runs_directory(config.runs_dir)
    if dry_run:
        return _show_plan(loaded, resumed=run_directory, missing=missing, as_json=as_json)
    if as_json:
        return _run_with_json(loaded, resume=run_directory)
    return _run_to_end(loaded, resume=run_directory, plain=plain_lines)


def _run_with_json(loaded: LoadedRecipe, *, resume: Path | None) -> int:
    started: list[Path] = []
    try:
        # Standard output is for the one document at the end, which a run that fails has too.
        with contextlib.redirect_stdout(sys.stderr):
            exit_code = _run_to_end(loaded, resume=resume, plain=True, on_prepared=started.append)
    finally:
        for run_directory in started:
            print_json(_record(run_directory))
    if not started:
        outcome = "interrupted" if exit_code else "stopped"
        print_json({"run_directory": None, "outcome": outcome, "exit_code": exit_code})
    return exit_code


def _run_to_end(
    loaded: LoadedRecipe,
    *,
    resume: Path | None,
    plain: bool,
    on_prepared: Callable[[Path], None] = lambda run_directory: None,
) -> int:
    from tbactl.supervision.supervisor import run_to_end

    return run_to_end(
        loaded.run_config,
        recipe_name=loaded.name,
        profile=loaded.profile,
        resume=resume,
        plain=plain,
        on_prepared=on_prepared,
    )


def _record(directory: Path) -> dict[str, Any]:
    return {"run_directory": str(directory.resolve()), **read_run_record(directory).model_dump(mode="json")}


def _announce(loaded: LoadedRecipe, *, resumed: Path | None) -> None:
    first = f"tbactl {__version__} | recipe {loaded.name} | profile {loaded.profile}: {loaded.profile_reason}"
    typer.echo(plain(first if resumed is None else f"{first} | resumes {resumed}"))
    for warning in loaded.warnings:
        typer.echo(f"warning: {plain(warning)}", err=True)


def _show_plan(loaded: LoadedRecipe, *, resumed: Path | None, missing: list[str], as_json: bool) -> int:
    from tbactl.supervision.run_directory import prepare

    config = loaded.run_config
    root = resumed or prepare(config, recipe_name=loaded.name, profile=loaded.profile).root
    warnings = [*loaded.warnings, *missing]
    if as_json:
        print_json(
            {
                "recipe": loaded.name,
                "profile": loaded.profile,
                "profile_reason": loaded.profile_reason,
                "run_directory": str(root),
                "sources": [str(source) for source in loaded.sources],
                "warnings": warnings,
                "config": config.model_dump(mode="json"),
            }
        )
        return 0
    for line in plan_lines(config):
        typer.echo(plain(line))
    for sentence in missing:
        typer.echo(f"warning: {plain(sentence)}", err=True)
    fact = "the resolved configuration is in" if resumed is None else "the run can be resumed with what is in"
    typer.echo(plain(f"checked; {fact} {root}/config. Nothing was started."))
    return 0

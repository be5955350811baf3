"""`tbactl plan`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tbactl.cli.arguments import AsJson, Overrides, command_app, find_run, known_profile
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.loading import load_recipe
from tbactl.errors import ConfigError

if TYPE_CHECKING:
    from tbactl.config.sections import RunConfig
    from tbactl.planning.hardware import Hardware, ModelSection
    from tbactl.planning.sweep import Plan

app = command_app()


@app.command()
def plan(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe (`tbactl recipes list`) or a TOML file.")
    ],
    searchers: Annotated[
        str | None,
        typer.Option(metavar="1..64", help="Numbers of searchers: 4, 1,2,8 or 1..64. The default is the recipe's."),
    ] = None,
    hardware: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Machine, costs and prices (TOML, docs/planning.md)."),
    ] = None,
    measured_from: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Take what the file does not say from a finished run's metrics."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 typer wants the default here and copies it
    profile: Annotated[
        str | None, typer.Option(metavar="cpu|gpu", help="Profile of the recipe; the default fits the hardware found.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the scaling curve.")] = None,
    write_hardware: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what --from has measured, to edit it.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=10_000, help="Optimizer steps to simulate; the rest goes on at the same pace.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say beforehand what a run will do: speed, staleness, idle shares, memory, cost.

    Simulates searchers, rings, buffer, trainer and syncs with costs that were measured or given, and starts nothing.
    """
    from tbactl.planning.figure import draw_plan
    from tbactl.planning.measured import measured_hardware
    from tbactl.planning.sweep import parse_counts

    if write_hardware is not None and measured_from is None:
        raise typer.BadParameter("there is nothing to write without --from RUN", param_hint="--write-hardware")
    config = load_recipe(recipe, overrides=overrides, profile=known_profile(profile)).run_config
    counts = [config.searchers.num_searchers] if searchers is None else parse_counts(searchers)
    measured = None if measured_from is None else measured_hardware(find_run(measured_from))
    if write_hardware is not None and measured is not None:
        _write(write_hardware, hardware=measured, run=str(measured_from))
    made, known = _made(config, hardware=hardware, measured=measured, counts=counts, steps=steps, seed=seed)
    if figure is not None:
        draw_plan(made, figure)
    if as_json:
        from tbactl.cli.forecast import plan_document

        print_json(plan_document(made, currency=known.machine.currency))
    else:
        _show(made, currency=known.machine.currency)


def _made(
    config: RunConfig, *, hardware: Path | None, measured: Hardware | None, counts: list[int], steps: int, seed: int
) -> tuple[Plan, Hardware]:
    from tbactl.planning.estimate import scenario_of
    from tbactl.planning.hardware import load_hardware
    from tbactl.planning.sweep import make_plan

    known = load_hardware(hardware, measured=measured)
    model = known.model or _local_model(config)
    scenario = scenario_of(config, hardware=known, model=model, max_steps=steps, seed=seed)

    def announce(num_searchers: int) -> None:
        if sys.stderr.isatty() and len(counts) > 1:
            typer.echo(f"\rsimulating {num_searchers} of {counts[-1]} searchers ", err=True, nl=False)

    made = make_plan(scenario, hardware=known, model=model, counts=counts, on_point=announce)
    if sys.stderr.isatty() and len(counts) > 1:
        typer.echo("\r" + " " * 60 + "\r", err=True, nl=False)
    return made, known


def _local_model(config: RunConfig) -> ModelSection | None:
    from tbactl.planning.model_shape import model_shape
    from tbactl.supervision.policy import resolve_policy

    return model_shape(resolve_policy(config))


def _write(path: Path, *, hardware: Hardware, run: str) -> None:
    from tbactl.planning.hardware import to_toml

    if path.exists():
        raise ConfigError(f"{path} exists; name another file, or remove it.")
    try:
        path.write_text(to_toml(hardware, comment=f"Measured from the run {plain(run)}."), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write-hardware {path}: cannot be written: {error.strerror}.") from None


def _show(made: Plan, *, currency: str) -> None:
    from tbactl.cli.forecast import basis_lines, memory_lines, point_rows, verdict
    from tbactl.config.derived import searchers_here

    for line in basis_lines(made.scenario):
        typer.echo(plain(line, keep_lines=True))
    columns, rows = point_rows(made, currency=currency)
    typer.echo()
    print_table(columns, rows)
    typer.echo()
    if len(made.points) > 1:
        typer.echo(verdict(made))
    if made.memory is None:
        typer.echo("memory: not known, for the policy is not on this machine; give its shape: [model] in the file.")
    else:
        typer.echo(f"memory with {made.best} searcher(s), activations roughly:")
        are_here = searchers_here(made.scenario.run) > 0
        for line in memory_lines(made.memory, are_searchers_here=are_here):
            typer.echo(line)
    for sentence, numbers in _warned(made).items():
        typer.echo(f"warning: {_ranges(numbers)}: {plain(sentence)}", err=True)


def _warned(made: Plan) -> dict[str, list[int]]:
    """Each warning, and the numbers of searchers it is about."""
    warned: dict[str, list[int]] = {}
    for point in made.points:
        for sentence in point.warnings:
            warned.setdefault(sentence, []).append(point.outcome.num_searchers)
    return warned


def _ranges(numbers: list[int]) -> str:
    """`1 to 3, 8 searcher(s)`: only what follows on each other is a range."""
    # Numbers that follow on each other are as far from their places in the list.
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"{shown} searcher(s)"

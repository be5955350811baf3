"""`tbactl buffer`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tbactl.cli.arguments import AsJson, command_app, find_run
from tbactl.cli.output import plain, print_json, print_table
from tbactl.errors import ConfigError

if TYPE_CHECKING:
    from tbactl.checkpoints.saved_buffer import SavedBuffer

app = command_app(help="Show and export what a run's replay buffer holds.")

SHOWN_CHARACTERS = 100
BAR_CHARACTERS = 30

RunOrCheckpoint = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run directory, the name of one under runs/, or 'latest': its newest checkpoint. Or a checkpoint.",
    ),
]


@app.command("show")
def show_buffer(
    run: RunOrCheckpoint = "latest",
    num_examples: Annotated[
        int, typer.Option("--examples", min=0, help="Trajectories of the highest and of the lowest reward to print.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Show what the replay buffer of a checkpoint holds: how much, how old, how good."""
    from tbactl.cli.buffer_report import buffer_report

    report = buffer_report(_read(run), num_examples=num_examples)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


@app.command("export")
def export_buffer(
    run: RunOrCheckpoint,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="File to write.")],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many trajectories, those inserted last; the default is all.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the replay buffer of a checkpoint as a Parquet file, one row for each trajectory."""
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; name another file, or replace it with --force.")
    if out.exists() and not out.is_file():
        raise ConfigError(f"{out} is {'a directory' if out.is_dir() else 'a device'}; name a file.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no directory {out.parent}.")
    from tbactl.replay.export import export_parquet

    saved = _read(run)
    num_rows = export_parquet(saved.buffer, out, policy_version=saved.policy_version, limit=limit)
    if as_json:
        print_json({"checkpoint": str(saved.checkpoint), "file": str(out), "num_trajectories": num_rows})
    else:
        typer.echo(plain(f"{num_rows} trajectories of {saved.checkpoint} are in {out}"))


def _read(name: str) -> SavedBuffer:
    # numpy and msgspec; `tbactl buffer --help` needs neither.
    from tbactl.checkpoints.saved_buffer import read_saved_buffer

    path = Path(os.path.expanduser(name))  # leaves an unknown ~user as it is
    return read_saved_buffer(path if (path / "manifest.json").is_file() else find_run(name))


def _print_report(report: dict[str, Any]) -> None:
    typer.echo(plain(f"{report['checkpoint']}, policy version {report['policy_version']}"))
    print_table(("", "trajectories"), [(_words(name), number) for name, number in report["counts"].items()])
    typer.echo(f"each one received was trained on {report['samples_per_insert']:.2f} times on average\n")
    _print_bars("steps old", report["ages"], label="{youngest} .. {oldest}")
    _print_bars("reward", report["rewards"], label="{lowest:.3g} .. {highest:.3g}")
    for title in ("highest", "lowest"):
        if report[title]:
            _print_examples(f"{title} reward", report[title])


def _print_bars(title: str, bins: list[dict[str, Any]], *, label: str) -> None:
    most = max((row["num_trajectories"] for row in bins), default=1)
    rows = [
        (label.format(**row), row["num_trajectories"], "#" * round(BAR_CHARACTERS * row["num_trajectories"] / most))
        for row in bins
    ]
    print_table((title, "trajectories", ""), rows)


def _print_examples(title: str, examples: list[dict[str, Any]]) -> None:
    columns = ("reward", "version", "draws", "prompt", "completion")
    rows = [
        (f"{e['reward']:.4g}", e["version"], e["num_draws"], _short(e["prompt"]), _short(e["completion"]))
        for e in examples
    ]
    print_table(columns, rows, title=title)


def _short(text: str) -> str:
    line = plain(text)
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."


def _words(name: str) -> str:
    return name.removeprefix("num_").replace("_", " ")

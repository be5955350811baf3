"""`tbactl chaos`."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tbactl.chaos.campaign import run_campaign
from tbactl.chaos.faults import KINDS, PHASES
from tbactl.chaos.report import COLUMNS, NOTICE_BOUND_S, document, fault_line, kind_rows, summary_lines
from tbactl.chaos.schedule import schedule
from tbactl.chaos.verdict import Verdict
from tbactl.cli.arguments import AsJson, command_app
from tbactl.cli.output import plain, print_json, print_table
from tbactl.errors import ConfigError

app = command_app()

Name = TypeVar("Name", bound=str)


@app.command()
def chaos(
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same faults.")] = 0,
    faults: Annotated[int, typer.Option(min=1, max=100_000, help="How many.")] = 200,
    kinds: Annotated[str, typer.Option(metavar="KIND,...", help=f"Only these: {', '.join(KINDS)}.")] = "",
    phases: Annotated[str, typer.Option(metavar="PHASE,...", help=f"Only in these: {', '.join(PHASES)}.")] = "",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Runs at a time.")] = 2,
    bound_s: Annotated[float, typer.Option("--bound", min=1.0, help="Seconds after which a run is a hang.")] = 120.0,
    notice_bound_s: Annotated[
        float | None,
        typer.Option("--notice-bound", min=0.1, metavar="SECONDS", help="A fault that is noticed later is wrong."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New directory for chaos.json and every case that went wrong.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="With --output: keep cases that went right, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Strike small runs with faults; none may hang, leave anything or lose data.

    Each fault strikes a run of its own, with real rings, checkpoints and supervisor, and a fake engine and learner.
    Exit code 1 when anything is not as it must be. docs/chaos.md has the table of kinds and phases.
    """
    if keep and output is None:
        raise typer.BadParameter("it keeps cases in a directory: name it with --output DIR", param_hint="--keep")
    planned = schedule(
        seed, num_faults=faults, kinds=_chosen(kinds, KINDS, "kind"), phases=_chosen(phases, PHASES, "phase")
    )
    directory = _directory(output)
    with _shown(len(planned), as_json=as_json) as show:
        verdicts = run_campaign(
            planned,
            directory=directory,
            jobs=jobs,
            bound_s=bound_s,
            keeps=keep,
            notice_bound_s=notice_bound_s,
            on_verdict=show,
        )
    late_s = NOTICE_BOUND_S if notice_bound_s is None else notice_bound_s
    found = document(verdicts, seed=seed, notice_bound_s=late_s)
    is_right = all(verdict.is_right for verdict in verdicts)
    if output is None and is_right:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        (directory / "chaos.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, list(kind_rows(verdicts)))
        for line in summary_lines(verdicts, notice_bound_s=late_s):
            typer.echo(line)
    if not is_right:
        typer.echo(f"the directories of what went wrong are in {directory}", err=True)
    return 0 if is_right else 1


def _chosen(text: str, allowed: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ConfigError(f"there is no {what} '{unknown[0]}'; choose of {', '.join(allowed)}.")
    return tuple(name for name in allowed if name in names) or allowed


def _directory(output: Path | None) -> Path:
    if output is None:
        return Path(tempfile.mkdtemp(prefix="tbactl-chaos-"))
    try:
        output.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"--output {output} exists already; name a new directory.") from None
    return output.resolve()


@contextlib.contextmanager
def _shown(total: int, *, as_json: bool) -> Iterator[Callable[[Verdict], None]]:
    """Shows verdicts as they come: with a bar on a terminal, as lines elsewhere. With JSON on standard error."""
    if as_json or not sys.stdout.isatty():
        yield lambda verdict: typer.echo(plain(fault_line(verdict)), err=as_json)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True) as progress:
        bar = progress.add_task("faults", total=total)

        def show(verdict: Verdict) -> None:
            progress.console.print(plain(fault_line(verdict)), markup=False, highlight=False, soft_wrap=True)
            progress.advance(bar)

        yield show

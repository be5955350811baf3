"""`tbactl tasks`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl import registry
from tbactl.cli.arguments import AsJson, command_app
from tbactl.cli.audit import Audit, audit_rewards
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.overrides import apply_overrides
from tbactl.config.settings import Settings
from tbactl.config.tasks import GROUP, build_task
from tbactl.errors import ConfigError, TaskError
from tbactl.protocols import Task

MAX_ROWS_SHOWN = 50
TEST_TASK = "fake"

app = command_app(help="List, check and audit tasks and their rewards.")

TaskOptions = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="A task option, as under [task.options] of a recipe. Repeatable."),
]


@app.command("list")
def list_tasks(
    show_all: Annotated[bool, typer.Option("--all", help="Also the one that serves tests.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the installed tasks."""
    names = sorted(registry.available(GROUP).items())
    tasks = [_describe(name, target) for name, target in names if show_all or name != TEST_TASK]
    if as_json:
        print_json(tasks)
    else:
        print_table(("task", "what it is"), [(task["name"], task["description"]) for task in tasks])


@app.command("check")
def check_tasks(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="The default is all.")] = None,
    as_json: AsJson = False,
) -> int:
    """Run the conformance suite on tasks: gold answers must score the maximum, and so on. No model is needed."""
    from tbactl.testing.task_conformance import check_task

    problems: dict[str, list[str]] = {}
    for name in names or sorted(registry.available(GROUP)):
        task = build_task(name, {})
        try:
            problems[name] = list(check_task(task))
        finally:
            task.close()
    if as_json:
        print_json(problems)
    else:
        for name, found in problems.items():
            typer.echo(f"{name}: {'ok' if not found else f'{len(found)} problem(s)'}")
            for problem in found:
                typer.echo(f"  - {plain(problem)}")
    return TaskError.exit_code if any(problems.values()) else 0


@app.command("score")
def score_file(
    task_name: Annotated[str, typer.Argument(metavar="TASK", help="Name of an installed task.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.jsonl", help='Rows {"completion": ..., "gold": ...}; "correct": true|false is compared.'
        ),
    ],
    options: TaskOptions = [],  # noqa: B006 typer wants the default here and copies it
    threshold: Annotated[float, typer.Option(help="A reward of at least this counts as correct.")] = 0.5,
    as_json: AsJson = False,
) -> int:
    """Audit a task's reward on completions of your own: each reward, with its reason.

    Exit codes: 1 when a row says "correct" and the reward disagrees, 4 when the file is malformed.
    """
    if not math.isfinite(threshold):
        raise typer.BadParameter(f"{threshold} must be a finite number", param_hint="--threshold")
    task = _task(task_name, options=options)
    try:
        audit = audit_rewards(task, file, threshold=threshold)
    finally:
        task.close()
    if as_json:
        print_json(audit.as_document())
    else:
        _print_audit(audit)
    return 1 if audit.num_disagreeing else 0


def _task(name: str, *, options: Sequence[str]) -> Task:
    settings = Settings()
    problems = apply_overrides(settings, options)
    if problems:
        raise ConfigError(*problems)
    return build_task(name, settings.values)


def _describe(name: str, target: str) -> dict[str, Any]:
    try:
        task_class = registry.load(GROUP, name)
    except (ConfigError, ImportError) as error:
        return {"name": name, "target": target, "description": f"cannot be loaded: {error}", "options": {}}
    summary = (inspect.getdoc(task_class) or "").partition("\n")[0]
    return {"name": name, "target": target, "description": summary, "options": _options(task_class)}


def _options(task_class: type) -> dict[str, dict[str, str]]:
    # A task may show its options as a pydantic model; nothing else of it is asked for.
    fields = getattr(getattr(task_class, "options_model", None), "model_fields", {})
    return {
        name: {
            "type": str(getattr(field.annotation, "__name__", field.annotation)),
            "default": "required" if field.is_required() else repr(field.default),
            "description": field.description or "",
        }
        for name, field in fields.items()
    }


def _print_audit(audit: Audit) -> None:
    interesting = [row for row in audit.rows if row.agrees is False or row.error]
    shown = audit.rows if len(audit.rows) <= MAX_ROWS_SHOWN else interesting[:MAX_ROWS_SHOWN]
    marks = {True: "yes", False: "NO", None: ""}
    print_table(
        ("line", "reward", "agrees", "gold", "reason", "completion"),
        [
            (row.line, f"{row.reward:g}", marks[row.agrees], row.gold, row.error or row.reason, row.completion[-60:])
            for row in shown
        ],
    )
    if len(shown) < len(audit.rows):
        typer.echo(f"{len(audit.rows) - len(shown)} rows without a finding are not shown (--json shows all).")
    typer.echo(
        f"{len(audit.rows)} rows, mean reward {audit.mean_reward:.4f}, {audit.num_errors} scoring errors, "
        f"{audit.num_agreeing} of {audit.num_agreeing + audit.num_disagreeing} agree with 'correct'"
    )
    if means := audit.mean_metrics:
        typer.echo(f"means: {', '.join(f'{plain(name)} {value:.4g}' for name, value in means.items())}")

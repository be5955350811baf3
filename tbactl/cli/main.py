"""`tbactl`: the list of commands, and the one place where a failure becomes a message and an exit code.

A command's module is imported only when that command is invoked, so that `tbactl --help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tbactl import __version__
from tbactl.errors import EXIT_INTERRUPTED

EXIT_BROKEN_PIPE = 141  # what a shell shows for SIGPIPE

# Name -> module and first line of help; the module's `app` says the rest.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("tbactl.cli.commands.run", "Train a policy with TBA, as a recipe says."),
    "plan": (
        "tbactl.cli.commands.plan",
        "Say beforehand what a run will do: speed, staleness, idle shares, memory, cost.",
    ),
    "eval": ("tbactl.cli.commands.eval", "Measure a checkpoint on a task."),
    "sft": ("tbactl.cli.commands.sft", "Make a start policy by supervised fine-tuning."),
    "reward": ("tbactl.cli.commands.reward", "Train reward models from comparisons."),
    "watch": ("tbactl.cli.commands.watch", "Show a run, live or finished, in another terminal."),
    "stop": ("tbactl.cli.commands.stop", "Ask a run to stop: it ends with a checkpoint."),
    "buffer": ("tbactl.cli.commands.buffer", "Show and export what a run's replay buffer holds."),
    "tasks": ("tbactl.cli.commands.tasks", "List, check and audit tasks and their rewards."),
    "recipes": ("tbactl.cli.commands.recipes", "List and show recipes."),
    "chaos": (
        "tbactl.cli.commands.chaos",
        "Strike small runs with faults; none may hang, leave anything or lose data.",
    ),
    "doctor": ("tbactl.cli.commands.doctor", "Say what of this machine tbactl can use, and what is missing."),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one when it is invoked."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Import a command's module and build the command."""
    command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
    command.name = name
    return command


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tbactl {__version__}")
        raise typer.Exit


# Help is plain text: importing rich for it takes three times as long as everything else together.
app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def tbactl(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Asynchronous RL post-training of language models with Trajectory Balance (TBA).

    `tbactl run gsm8k` trains a small policy on this machine in minutes; `tbactl doctor` says what is missing for it.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    A failure is one message on standard error and an exit code by its kind (errors.py). With `--json` among the
    arguments the message is JSON. TBACTL_DEBUG=1 adds the traceback.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stdout is None:  # closed, `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 for the life of the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without the characters of a text is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = typer.main.get_command(app).main(
            args=arguments or ["--help"], prog_name="tbactl", standalone_mode=False
        )
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough (`| head`).
        _drop_unwritable_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        from tbactl.cli.failures import report

        if os.environ.get("TBACTL_DEBUG") == "1":
            raise
        exit_code = report(error, as_json="--json" in arguments)
        _drop_unwritable_output()
        if exit_code is None:
            raise
        return exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _drop_unwritable_output() -> None:
    # A reader that went away or a full disk: Python would try again at exit, and complain in its own way.
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

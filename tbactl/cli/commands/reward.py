"""`tbactl reward`."""

from __future__ import annotations

import json
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl import __version__
from tbactl.cli.arguments import AsJson, Overrides, command_app
from tbactl.cli.child import run_child
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.loading import load_recipe
from tbactl.config.reward import RewardConfig
from tbactl.config.runs_directory import make_runs_directory
from tbactl.errors import ChildFailedError, ConfigError

TASK_PACKAGE = "tbactl_preference"

app = command_app(help="Train reward models from comparisons.")


@app.callback()
def reward() -> None:
    """Train reward models from comparisons.

    The preference task takes a finished one by its directory: `--set task.options.reward_model=DIRECTORY`.
    """


@app.command("train")
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe of kind reward, or a TOML file.")
    ],
    overrides: Overrides = [],  # noqa: B006 typer wants the default here and copies it
    output: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where to write; the default is runs_dir/name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and start nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Train a reward model by the Bradley-Terry loss, and measure it on held-out comparisons.

    Writes weights, configuration, a model card (README.md), metrics.json and calibration.png.
    """
    loaded = load_recipe(recipe, overrides=overrides, options=_output_settings(output))
    config = loaded.reward_config
    directory = config.runs_dir.expanduser() / config.name
    _check(config)
    if not as_json:
        typer.echo(plain(f"tbactl {__version__} | recipe {loaded.name} | output {directory}"))
        for warning in loaded.warnings:
            typer.echo(plain(f"warning: {warning}"), err=True)
    result: dict[str, Any] = {} if dry_run else _trained(config)
    if as_json:
        print_json(
            {
                "reward_model": str(directory),
                "config": config.model_dump(mode="json"),
                "warnings": loaded.warnings,
                **result,
            }
        )
    elif dry_run:
        typer.echo("checked; nothing was started.")
    else:
        _print_quality(result["held_out"])
        typer.echo(plain(f"reward model: {directory}"))
    return 0


def _check(config: RewardConfig) -> None:
    if find_spec(TASK_PACKAGE) is None:
        raise ConfigError(
            "reward models belong to the preference task, not installed here; `pip install tasks/preference`."
        )
    import_module(f"{TASK_PACKAGE}.reward_checks").check_training(config)


def _trained(config: RewardConfig) -> dict[str, Any]:
    make_runs_directory(config.runs_dir)
    module = f"{TASK_PACKAGE}.reward_train"
    with tempfile.TemporaryDirectory(prefix="tbactl-reward-") as folder:
        file = Path(folder) / "reward.json"
        file.write_text(config.model_dump_json(indent=2), encoding="utf-8")
        output = run_child(module, ["--config", str(file)], log=None)
    try:
        return json.loads(output)
    except ValueError:
        raise ChildFailedError(f"{module} wrote no result but {output[:200]!r}.") from None


def _print_quality(held_out: dict[str, Any]) -> None:
    rows = [*held_out["kinds"].items(), ("together", held_out)]
    print_table(
        ("kind", "held-out accuracy", "95 % interval", "pairs"),
        [
            (kind, f"{share['accuracy']:.3f}", f"{share['low']:.3f} to {share['high']:.3f}", share["num_pairs"])
            for kind, share in rows
        ],
    )


def _output_settings(output: Path | None) -> dict[str, str]:
    return {} if output is None else {"runs_dir": str(output.parent), "name": output.name}

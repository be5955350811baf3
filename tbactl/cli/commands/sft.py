"""`tbactl sft`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tbactl import __version__
from tbactl.cli.arguments import AsJson, Overrides, command_app
from tbactl.cli.child import run_child
from tbactl.cli.output import plain, print_json
from tbactl.config.loading import load_recipe
from tbactl.config.runs_directory import make_runs_directory

app = command_app()


@app.command()
def sft(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe of kind sft, or a TOML file.")
    ],
    overrides: Overrides = [],  # noqa: B006 typer wants the default here and copies it
    output: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where to write; the default is runs_dir/name.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue at the last checkpoint of the output directory.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and start nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Make a start policy by supervised fine-tuning.

    From scratch, or from another policy. The finished policy is in the output directory's `policy`;
    `tbactl run ... --set policy.path=DIRECTORY` trains it further with TBA.
    """
    loaded = load_recipe(recipe, overrides=overrides, options=_output_settings(output))
    config = loaded.sft_config
    directory = config.runs_dir / config.name
    if not as_json:
        typer.echo(plain(f"tbactl {__version__} | recipe {loaded.name} | output {directory}"))
    if not dry_run:
        make_runs_directory(config.runs_dir)
        with tempfile.TemporaryDirectory(prefix="tbactl-sft-") as folder:
            file = Path(folder) / "sft.json"
            file.write_text(config.model_dump_json(indent=2), encoding="utf-8")
            run_child("tbactl.sft", ["--config", str(file), *(["--resume"] if resume else [])], log=None)
    if as_json:
        print_json({"policy": str(directory / "policy"), "config": config.model_dump(mode="json")})
    else:
        typer.echo(plain(f"policy: {directory / 'policy'}") if not dry_run else "checked; nothing was started.")
    return 0


def _output_settings(output: Path | None) -> dict[str, str]:
    return {} if output is None else {"runs_dir": str(output.parent), "name": output.name}

"""`tbactl recipes`."""

from __future__ import annotations

from typing import Annotated

import typer

from tbactl.cli.arguments import AsJson, command_app
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.recipes import COMMANDS, locate_recipe, read_recipe, recipe_text, shipped_recipes

app = command_app(help="List and show recipes.")


@app.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with tbactl."""
    recipes = [read_recipe(path, profile="cpu") for path in shipped_recipes().values()]
    if as_json:
        print_json(
            [
                {"name": recipe.name, "kind": recipe.kind, "path": str(recipe.path), "description": recipe.description}
                for recipe in recipes
            ]
        )
        return
    print_table(
        ("recipe", "command", "what it does"),
        [(recipe.name, f"tbactl {COMMANDS[recipe.kind]} {recipe.name}", recipe.description) for recipe in recipes],
    )


@app.command("show")
def show_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe or a TOML file.")],
    as_json: AsJson = False,
) -> None:
    """Print a recipe's file, a start for one of your own."""
    path = locate_recipe(recipe)
    text = recipe_text(path)
    if as_json:
        print_json({"name": path.stem, "path": str(path), "text": text})
    else:
        typer.echo(plain(text, keep_lines=True))

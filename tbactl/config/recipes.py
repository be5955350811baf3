"""Finding recipes and reading them: TOML, `extends`, profiles.

A recipe holds the sections of RunConfig (of SftConfig with `kind = "sft"`, of RewardConfig with `kind = "reward"`) and,
besides them,

    description = "..."             one line for `tbactl recipes list`
    extends = "other.toml"          read that recipe first, found beside this one, else a shipped one
    [profiles.gpu.trainer]          laid over [trainer] on a machine with an NVIDIA device; likewise `cpu`

Later wins: the extended recipe, its profile, this recipe, its profile, then `--set`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from tbactl.config.hardware import PROFILES, Profile
from tbactl.config.settings import Settings, dotted
from tbactl.config.toml_lines import KeyPath, key_lines
from tbactl.errors import ConfigError
from tbactl.registry import suggestion

RecipeKind = Literal["run", "sft", "reward"]
KINDS: tuple[RecipeKind, ...] = ("run", "sft", "reward")
# The command that takes a recipe of a kind.
COMMANDS: Mapping[RecipeKind, str] = {"run": "run", "sft": "sft", "reward": "reward train"}
# Where a wheel puts the recipes, relative to the environment's prefix (pyproject.toml, data-files).
INSTALLED_RECIPES = "share/tbactl/recipes"


@dataclass(slots=True)
class Recipe:
    """A recipe as read, with what it extends and its profile laid over; nothing is validated yet."""

    name: str
    path: Path
    kind: RecipeKind = "run"
    description: str = ""
    sources: list[Path] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    problems: list[str] = field(default_factory=list)


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of the recipes that come with tbactl, from a checkout or from the installed wheel."""
    return {path.stem: path for path in sorted(_shipped_files(), key=lambda path: path.stem)}


def _shipped_files() -> Iterator[Path]:
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / "recipes").is_dir():
        yield from (checkout / "recipes").glob("*.toml")
        return
    try:
        files = distribution("tbactl").files or []
    except PackageNotFoundError:
        return
    for file in files:
        if file.parent.as_posix().endswith(INSTALLED_RECIPES) and file.suffix == ".toml":
            yield Path(str(file.locate())).resolve()


def locate_recipe(name_or_path: str) -> Path:
    """The file of a shipped recipe's name, or of a path.

    Raises:
        ConfigError: there is neither.
    """
    shipped = shipped_recipes()
    if name_or_path in shipped:
        return shipped[name_or_path]
    path = Path(os.path.expanduser(name_or_path))  # leaves an unknown ~user as it is
    if path.is_file():
        return path
    if name_or_path and path.exists():
        what = "a directory" if path.is_dir() else "not a regular file"
        raise ConfigError(f"recipe '{name_or_path}' is {what}; give a TOML file or the name of a shipped recipe.")
    names = sorted(shipped)
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ConfigError(f"recipe file '{name_or_path}' does not exist; shipped recipes: {', '.join(names)}.")
    raise ConfigError(
        f"there is no recipe '{name_or_path}'{suggestion(name_or_path, names)}; shipped: {', '.join(names)}. "
        f"A file of your own is given by its path, for example ./{name_or_path}.toml."
    )


def read_recipe(path: Path, *, profile: Profile) -> Recipe:
    """Read a recipe and all it extends.

    Raises:
        ConfigError: a file is missing or not TOML, or recipes extend one another in a circle.
    """
    recipe = Recipe(name=path.stem, path=path)
    _read_into(recipe, path, profile=profile, chain=())
    recipe.settings.values.setdefault("name", path.stem)
    return recipe


def _read_into(recipe: Recipe, path: Path, *, profile: Profile, chain: tuple[Path, ...]) -> None:
    shown = shown_path(path)
    if path.resolve() in chain:
        circle = " -> ".join(link.name for link in (*chain, path))
        raise ConfigError(f"{shown}: recipes extend one another in a circle: {circle}; remove one `extends`.")
    values, lines = read_toml(path)
    base = values.pop("extends", None)
    if isinstance(base, str):
        base_path = path.parent / base
        if not base_path.is_file():
            base_path = shipped_recipes().get(base.removesuffix(".toml"), base_path)
        if not base_path.is_file():
            raise ConfigError(
                f'{shown}:{lines[("extends",)]}: extends = "{base}": there is no file {shown_path(base_path)}, '
                f"and no shipped recipe of that name."
            )
        _read_into(recipe, base_path, profile=profile, chain=(*chain, path.resolve()))
    elif base is not None:
        recipe.problems.append(f"{shown}:{lines[('extends',)]}: extends must be one file name.")
    recipe.sources.append(path)
    # A name or a description belongs to one recipe; it is not inherited.
    recipe.settings.values.pop("name", None)
    recipe.description = str(values.pop("description", ""))
    kind = values.pop("kind", recipe.kind)
    if kind in KINDS:
        recipe.kind = kind
    else:
        recipe.problems.append(f'{shown}:{lines[("kind",)]}: kind = "{kind}" must be one of {", ".join(KINDS)}.')
    overlays = values.pop("profiles", {})
    recipe.problems.extend(_profile_problems(overlays, lines=lines, shown=shown))
    recipe.settings.merge(values, file=shown, lines=lines)
    overlay = overlays.get(profile, {}) if isinstance(overlays, dict) else {}
    prefix: KeyPath = ("profiles", profile)
    overlay_lines = {key[2:]: line for key, line in lines.items() if key[:2] == prefix and len(key) > 2}
    if isinstance(overlay, dict):
        recipe.settings.merge(overlay, file=shown, lines=overlay_lines)


def read_toml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The values of a TOML file, and on which line each key stands.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    shown = shown_path(path)
    text = recipe_text(path)
    try:
        return tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        position = f":{place[1]}:{place[2]}" if place else ""
        reason = re.sub(r"\s*\(at line .*\)$", "", str(error))
        raise ConfigError(f"{shown}{position}: this is not valid TOML: {reason}.") from None
    except RecursionError:
        raise ConfigError(f"{shown}: tables or arrays are nested too deeply.") from None
    except ValueError as error:  # Python's own limit
        reason = str(error).partition(";")[0]
        raise ConfigError(f"{shown}: an integer is far too long: {reason}.") from None


def recipe_text(path: Path) -> str:
    """A recipe's file as text.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    shown = shown_path(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: this is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror}.") from None


def _profile_problems(overlays: Any, *, lines: dict[KeyPath, int], shown: str) -> Iterator[str]:
    if not isinstance(overlays, dict):
        yield f"{shown}:{lines[('profiles',)]}: profiles must be tables, for example [profiles.cpu.trainer]."
        return
    for name, overlay in overlays.items():
        path: KeyPath = ("profiles", name)
        if name not in PROFILES:
            hint = suggestion(name, list(PROFILES))
            yield f"{shown}:{lines[path]}: {dotted(path)}: there is no such profile{hint}; known: cpu, gpu."
        elif not isinstance(overlay, dict):
            yield f"{shown}:{lines[path]}: {dotted(path)} must hold tables, for example [{dotted(path)}.trainer]."


def shown_path(path: Path) -> str:
    """A path for messages: relative to the working directory where it lies beneath it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative

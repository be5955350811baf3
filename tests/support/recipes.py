"""A small valid recipe, and a way to write variations of it."""

from __future__ import annotations

from pathlib import Path

BASE = """
[task]
kind = "fake"

[policy]
path = "some/policy"

[searchers]
engine = "fake"

[trainer]
kind = "fake"
"""


def write_recipe(directory: Path, text: str = BASE, *, name: str = "recipe") -> str:
    """Write a recipe file; returns its path as a user would type it."""
    path = directory / f"{name}.toml"
    path.write_text(text.lstrip("\n"), encoding="utf-8")
    return str(path)

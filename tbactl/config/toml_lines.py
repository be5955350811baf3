"""On which line of a TOML file each key stands; tomllib itself does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

# Table names and keys from the outside in; an int is a position in an array of tables.
KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line number, from 1, of every table and key of a valid TOML text (inline tables included)."""
    # What TOML takes for line ends and white space, which is less than Python does.
    lines = text.replace("\r\n", "\n").split("\n")
    found: dict[KeyPath, int] = {}
    array_lengths: dict[KeyPath, int] = {}
    table: KeyPath = ()
    position = 0
    while position < len(lines):
        stripped = lines[position].strip(" \t")
        end = position + 1
        if stripped.startswith("["):
            table = _header_path(stripped, array_lengths)
            for length in range(1, len(table) + 1):
                found.setdefault(table[:length], end)
        elif stripped and not stripped.startswith("#"):
            fragment, end = _statement(lines, position)
            for path in _paths(fragment):
                found.setdefault((*table, *path), position + 1)
        position = end
    return found


def _header_path(header: str, array_lengths: dict[KeyPath, int]) -> KeyPath:
    is_array = header.startswith("[[")
    names = [name for name in next(iter(_deepest(tomllib.loads(header)))) if isinstance(name, str)]
    path: KeyPath = ()
    for depth, name in enumerate(names):
        path = (*path, name)
        if is_array and depth == len(names) - 1:
            array_lengths[path] = array_lengths.get(path, 0) + 1
        if path in array_lengths:
            path = (*path, array_lengths[path] - 1)
    return path


def _statement(lines: list[str], start: int) -> tuple[dict[str, Any], int]:
    # A value may span lines (arrays, multi-line strings): it ends where the text first parses.
    for end in range(start + 1, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[start:end])), end
        except tomllib.TOMLDecodeError:
            continue
    raise AssertionError("key_lines is called with valid TOML only")


def _paths(value: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*prefix, name)
            yield from _paths(inner, (*prefix, name))


def _deepest(value: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, list):
        value = value[0]
    if not value:
        yield prefix
        return
    for name, inner in value.items():
        yield from _deepest(inner, (*prefix, name))

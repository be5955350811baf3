"""Nested settings under construction: values, and for each the place where the user wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tbactl.config.toml_lines import KeyPath


def dotted(path: KeyPath) -> str:
    """A path as a person types it: `trainer.max_steps`."""
    return ".".join(str(part) for part in path)


class Settings:
    """What recipes, profiles and overrides add up to. Later calls win."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._origins: dict[KeyPath, str] = {}

    def merge(self, values: Mapping[str, Any], *, file: str, lines: Mapping[KeyPath, int]) -> None:
        """Lay tables over what is there, key by key; anything that is not a table is replaced whole."""
        for path, value in _leaves(values):
            # An empty table adds nothing to a table that is there.
            if value != {} or not isinstance(self.get(path), dict):
                self._put(path, value)
        for path, line in lines.items():
            self._origins[path] = f"{file}:{line}"

    def assign(self, path: KeyPath, value: Any, *, origin: str) -> None:
        """Set one key, a table included, to exactly this value."""
        self._put(path, value)
        self._origins[path] = origin

    def get(self, path: KeyPath) -> Any:
        """The value at a path, or None."""
        value: Any = self.values
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def origin(self, path: KeyPath) -> str:
        """Where a value came from: "FILE:LINE", "--set", or "" for a default."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._origins:
                return self._origins[path[:length]]
        # A table that exists only because a key beneath it was set.
        return next((place for known, place in self._origins.items() if known[: len(path)] == path), "")

    def _put(self, path: KeyPath, value: Any) -> None:
        for known in [known for known in self._origins if known[: len(path)] == path]:
            del self._origins[known]
        table: Any = self.values
        for part in path[:-1]:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[path[-1]] = value


def _leaves(values: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value

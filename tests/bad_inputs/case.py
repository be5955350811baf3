"""What a case of a bad input is: files, a command, and what must be said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

USAGE, CONFIG, TASK, CHILD, CAPACITY, CHECKPOINT = 2, 3, 4, 5, 6, 7


@dataclass(frozen=True, slots=True)
class Case:
    """One bad input. It is tried in an empty directory that holds `ok.toml`, a recipe without a mistake."""

    name: str
    command: str
    """What the user types after `tbactl`, as a shell splits it; with `shell` the whole line."""
    exit_code: int
    says: tuple[str, ...]
    """Words of the message: the value, what is allowed, what to do."""
    files: Mapping[str, str | bytes] = field(default_factory=lambda: MappingProxyType({}))
    """Name -> content, written before."""
    prepare: Callable[[Path], object] = lambda directory: None
    """What else is done to the directory before."""
    environment: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    """Variables; None removes one."""
    has_run: bool = False
    """Whether `runs/r` is a small run that has finished."""
    shell: bool = False
    """A new interpreter, started by a shell: for what concerns the terminal, the locale or the streams."""
    may_write: tuple[str, ...] = ()
    """Names in the directory that may appear or change; nothing else may."""


def case(name: str, command: str, exit_code: int, *says: str, **rest: object) -> Case:
    """A case in one line."""
    return Case(name, command, exit_code, says, **rest)  # pyright: ignore[reportArgumentType]

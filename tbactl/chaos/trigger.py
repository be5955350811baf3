"""How a process learns from outside that its fault is due, and says when it struck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tbactl.chaos.settings import CaseLayout

Hook = Callable[..., Any]


class Trigger:
    """A file that appears when the fault is due. Whoever removes it strikes, so only one life of a process does."""

    def __init__(self, layout: CaseLayout) -> None:
        self._layout = layout

    def pull(self) -> bool:
        """Whether to strike now."""
        try:
            self._layout.armed.unlink()
        except FileNotFoundError:
            return False
        partial = self._layout.struck.with_suffix(".partial")
        partial.write_text(str(time.monotonic()), encoding="ascii")
        partial.replace(self._layout.struck)
        return True


def before(act: Callable[[], object]) -> Callable[[Hook], Hook]:
    """Act before each call of a method."""

    def make(original: Hook) -> Hook:
        def wrapped(*arguments: object, **named: object) -> object:
            act()
            return original(*arguments, **named)

        return wrapped

    return make


def after(act: Callable[[], object]) -> Callable[[Hook], Hook]:
    """Act after each call of a method that returns."""

    def make(original: Hook) -> Hook:
        def wrapped(*arguments: object, **named: object) -> object:
            result = original(*arguments, **named)
            act()
            return result

        return wrapped

    return make


def wrap(owner: type, name: str, make: Callable[[Hook], Hook]) -> None:
    """Replace a method by what `make` returns for it."""
    setattr(owner, name, make(getattr(owner, name)))

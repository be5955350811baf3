"""Weights that a checkpoint lacks: transformers fills them with random numbers, and only logs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tbactl.errors import ConfigError

_NUM_NAMED = 3
# Old models register the numbers 0, 1, 2 ... as if they were weights; newer ones make them.
_COUNTED = "position_ids"


def missing_weights(loading_info: Mapping[str, Any], *, below: str = "", unused: tuple[str, ...] = ()) -> list[str]:
    """Names of weights that are random, sorted. Tied weights and buffers that a model makes itself are none.

    Args:
        loading_info: of `from_pretrained(..., output_loading_info=True)`.
        below: only those whose name begins so.
        unused: beginnings of names that do not matter, since nothing reads those weights or they are yet to be trained.
    """
    return sorted(
        name
        for name in loading_info["missing_keys"]
        if name.startswith(below) and not (unused and name.startswith(unused)) and name.split(".")[-1] != _COUNTED
    )


def check_weights(subject: str, missing: list[str], *, body: str = "", headless: str = "") -> None:
    """Refuse a model that lacks weights.

    Args:
        subject: what the message begins with.
        missing: of `missing_weights`.
        body: how the names of all weights begin but the head's.
        headless: what to say where the head is missing: the model was never trained for this.

    Raises:
        ConfigError: it does.
    """
    head = [name for name in missing if not name.startswith(body)]
    if head and headless:
        raise ConfigError(f"{subject} lacks the weights {_some_of(head)}; {headless}")
    if missing:
        raise ConfigError(
            f"{subject} is incomplete: it lacks the weights {_some_of(missing)}, which would be random; save or "
            f"download it again."
        )


def _some_of(names: list[str]) -> str:
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")

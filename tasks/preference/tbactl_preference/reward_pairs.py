"""What reward models learn from: two completions of one prompt, one of them better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """`chosen` is better than `rejected`. `kind` says how the pair came about; accuracies are told apart by it."""

    prompt: str
    chosen: str
    rejected: str
    kind: str


def by_kind(pairs: Sequence[PreferencePair], values: Sequence[bool]) -> dict[str, list[bool]]:
    """One value for each pair, sorted by the pairs' kinds, in the order in which the kinds first occur."""
    found: dict[str, list[bool]] = {}
    for pair, value in zip(pairs, values, strict=True):
        found.setdefault(pair.kind, []).append(value)
    return found

"""Words and sentences of a text, and how two texts share them: what several reward features are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_NAME_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(`\"'*-])|\n+")

# Words that a sentence hardly ends with, and that hardly follow one another.
FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an the and or of to in on for with by from at as into that which if is are be than its their this these "
        "whether when between over under per via not"
    )
)


def words(text: str) -> list[str]:
    """Lower-case words, in order; names like `dropNaRows` and `drop_na` fall into their parts."""
    return _WORD.findall(_NAME_PARTS.sub(" ", text).lower())


def sentences(text: str) -> list[str]:
    """Sentences and lines, in order; none is empty."""
    return [stripped for part in _SENTENCE_END.split(text) if (stripped := part.strip())]


def longest_shared_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest run of words that stands in both."""
    best = 0
    previous = [0] * (len(second) + 1)
    for word in first:
        current = [0] * (len(second) + 1)
        for position, other in enumerate(second, start=1):
            if word == other:
                current[position] = previous[position - 1] + 1
        best = max(best, *current)
        previous = current
    return best


def repeated_share(items: Sequence[object]) -> float:
    """Of all items the share that has occurred before: 0 (all differ) to almost 1."""
    return 1.0 - len(set(items)) / len(items) if items else 0.0

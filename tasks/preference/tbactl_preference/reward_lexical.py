"""Features of a summary that see words alone: what it shares with its document, and whether it reads like a summary.

No neural network and no pretrained vector: for a reward model that judges independently of those that use one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tbactl_preference.reward_head import Array
from tbactl_preference.reward_text import FUNCTION_WORDS, longest_shared_run, repeated_share, sentences, words

# Words and word runs are counted by hash, modulo this.
NUM_BUCKETS = 1 << 13
_STEM_LETTERS = 5
_START, _END = "<s>", "</s>"
# Runs seen c times count as c / (c + this) of the estimate; the rest comes from shorter runs.
_BACKOFF = 2.0
_LENGTH_KNOTS = (4, 8, 12, 16, 24, 40)

NAMES = (
    "copied_run",
    "known_share",
    "known_rarity",
    "unknown_rarity",
    "title_recall",
    "title_precision",
    "title_letters",
    "body_letters",
    "mean_log_probability",
    "least_log_probability",
    "log_probability_of_end",
    "log_probability_of_start",
    "repeated_words",
    "repeated_pairs",
    "more_sentences",
    "ends_with_stop",
    "starts_upper",
    "odd_characters",
    "function_words",
    "is_empty",
    *(f"longer_than_{knot}" for knot in _LENGTH_KNOTS),
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WordStatistics:
    """Counts by hash: how rare words are in documents, and which words follow one another in human summaries."""

    num_documents: NDArray[np.float32]
    """Shape (1,)."""
    document_frequency: NDArray[np.float32]
    """Shape (buckets,): documents with a word stem."""
    pairs: NDArray[np.float32]
    """Shape (buckets,): runs of two word classes in summaries."""
    triples: NDArray[np.float32]
    """Shape (buckets,): runs of three."""

    @classmethod
    def of(cls, *, documents: Sequence[str], summaries: Sequence[str]) -> WordStatistics:
        """Count."""
        frequency, pairs, triples = (np.zeros(NUM_BUCKETS, dtype=np.float32) for _ in range(3))
        for document in documents:
            frequency[sorted({_bucket(stem) for stem in _stems(document)})] += 1
        for summary in summaries:
            for first, second, third in _runs(summary):
                pairs[_bucket(second, third)] += 1
                triples[_bucket(first, second, third)] += 1
        return cls(
            num_documents=np.array([len(documents)], dtype=np.float32),
            document_frequency=frequency,
            pairs=pairs,
            triples=triples,
        )

    def rarity(self, stem: str) -> float:
        """Inverse document frequency, in nats."""
        return math.log((float(self.num_documents[0]) + 1) / (float(self.document_frequency[_bucket(stem)]) + 1))

    def log_probabilities(self, text: str) -> list[float]:
        """For each word class of a text and its end: how expected it is after the two before it; higher is more."""
        total = float(self.pairs.sum()) + 1.0
        found = []
        for first, second, third in _runs(text):
            pair, triple = self.pairs[_bucket(second, third)], self.triples[_bucket(first, second, third)]
            short = (float(pair) + 0.1) / total
            found.append(math.log(short + float(triple) / (float(triple) + _BACKOFF)))
        return found

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """What a file holds."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[np.float32]]) -> WordStatistics:
        """The inverse of `tensors`.

        Raises:
            KeyError: one is missing.
        """
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})


class LexicalFeatures:
    """Features of (document, summary) by the names of `NAMES`."""

    def __init__(self, statistics: WordStatistics) -> None:
        self.statistics = statistics

    def __call__(self, documents: Sequence[str], texts: Sequence[str]) -> Array:
        """Shape (texts, features), float64."""
        rows = [self._row(document, text.strip()) for document, text in zip(documents, texts, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))

    def _row(self, document: str, text: str) -> list[float]:
        title, _, body = document.partition("\n")
        body = body or title
        found = words(text)
        likely = self.statistics.log_probabilities(text)
        letters = _letter_runs(text)
        return [
            longest_shared_run(found, words(body)) / max(len(found), 4),
            *self._overlap(_stems(text), in_document=set(_stems(document)), title=_stems(title)),
            _cosine(letters, _letter_runs(title)),
            _cosine(letters, _letter_runs(body)),
            sum(likely) / len(likely),
            min(likely),
            likely[-1],
            likely[0],
            repeated_share(found),
            repeated_share(list(pairwise(found))),
            float(min(len(sentences(text)) - 1, 4)),
            float(text.endswith((".", "!", "?"))),
            float(text[:1].isupper()),
            sum(not (c.isalnum() or c in " .,'-") for c in text) / max(1, len(text)),
            sum(word in FUNCTION_WORDS for word in found) / max(1, len(found)),
            float(not found),
            *(min(max(0.0, math.log((len(found) + 1) / knot)), 1.5) for knot in _LENGTH_KNOTS),
        ]

    def _overlap(self, stems: Sequence[str], *, in_document: set[str], title: Sequence[str]) -> list[float]:
        # Dictionaries, not sets: a sum in another order in every process would differ in its last bit.
        own = {stem: self.statistics.rarity(stem) for stem in stems}
        total = sum(own.values()) or 1.0
        known = [rarity for stem, rarity in own.items() if stem in in_document]
        unknown = [rarity for stem, rarity in own.items() if stem not in in_document]
        titled = {stem: self.statistics.rarity(stem) for stem in title}
        shared = sum(rarity for stem, rarity in titled.items() if stem in own)
        return [
            sum(known) / total,
            max(known, default=0.0),
            max(unknown, default=0.0),
            shared / (sum(titled.values()) or 1.0),
            shared / total,
        ]


def _stems(text: str) -> list[str]:
    return [word[:_STEM_LETTERS] for word in words(text) if word not in FUNCTION_WORDS]


def _runs(text: str) -> Iterator[tuple[str, str, str]]:
    """Each word's class, and the end's, after the classes of the two words before."""
    classes = [_START, _START, *map(_word_class, words(text)), _END]
    yield from zip(classes, classes[1:], classes[2:], strict=False)


def _word_class(word: str) -> str:
    return word if word in FUNCTION_WORDS else f"-{word[-2:]}"


def _bucket(*parts: str) -> int:
    return crc32("\x1f".join(parts).encode()) % NUM_BUCKETS


def _letter_runs(text: str) -> Counter[str]:
    spaced = f" {' '.join(word for word in words(text) if word not in FUNCTION_WORDS)} "
    return Counter(spaced[index : index + 4] for index in range(len(spaced) - 3))


def _cosine(first: Counter[str], second: Counter[str]) -> float:
    product = sum(count * second[run] for run, count in first.items() if run in second)
    lengths = math.sqrt(sum(n * n for n in first.values()) * sum(n * n for n in second.values()))
    return product / lengths if lengths else 0.0

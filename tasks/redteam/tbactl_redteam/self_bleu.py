"""Self-BLEU (Zhu et al. 2018, arXiv 1802.01886): how much each text of a set shares its wording with the others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tbactl.evaluation.estimates import Estimate

_MAX_ORDER = 4
_NUM_GROUPS = 20
# Student's t with 19 degrees of freedom, two-sided 95 %.
_T_95 = 2.093024054408263
_WORD = re.compile(r"\w+|[^\w\s]")
# A text of thousands of words is no attack.
_MAX_WORDS = 1000

_Gram = tuple[str, ...]


def self_bleu(texts: Sequence[str]) -> Estimate | None:
    """Mean of each text's BLEU with all others as its references, in [0, 1]; None for fewer than two texts.

    1: each text stands in the set twice; 0: no two share a word. The interval is a delete-a-group jackknife's (20
    groups drawn at random, seeded; none below 40 texts): a bootstrap would put copies of a text among its references.
    """
    if len(texts) < 2:
        return None
    words = [_words(text) for text in texts]
    value = float(np.mean(_scores(words)))
    if len(texts) < 2 * _NUM_GROUPS:
        return Estimate(value)
    groups = np.random.default_rng(0).permutation(len(texts)) % _NUM_GROUPS
    others = [np.mean(_scores([words[i] for i in np.flatnonzero(groups != group)])) for group in range(_NUM_GROUPS)]
    half = _T_95 * math.sqrt((_NUM_GROUPS - 1) * float(np.var(others)))
    return Estimate(value, (max(0.0, value - half), min(1.0, value + half)))


def self_bleu_scores(texts: Sequence[str]) -> list[float]:
    """BLEU of each of two or more texts with all others as references, in [0, 1].

    As sacrebleu's sentence BLEU: up to four words, closest reference length, exponential smoothing, effective order; of
    words and punctuation marks in lower case. In time linear in the number of texts.
    """
    return _scores([_words(text) for text in texts])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())[:_MAX_WORDS]


def _scores(texts: Sequence[list[str]]) -> list[float]:
    counts = [_gram_counts(words) for words in texts]
    # The two largest counts of each n-gram: the larger that is not a text's own is what its references allow.
    largest: dict[_Gram, tuple[int, int]] = {}
    for grams in counts:
        for gram, count in grams.items():
            first, second = largest.get(gram, (0, 0))
            largest[gram] = (max(first, count), max(second, min(first, count)))
    lengths = Counter(len(words) for words in texts)
    scores = []
    for words, grams in zip(texts, counts, strict=True):
        matches = [0] * _MAX_ORDER
        for gram, count in grams.items():
            first, second = largest[gram]
            matches[len(gram) - 1] += min(count, second if count == first else first)
        scores.append(_bleu(matches, length=len(words), reference_length=_closest_other(len(words), lengths)))
    return scores


def _gram_counts(words: list[str]) -> Counter[_Gram]:
    return Counter(
        tuple(words[i : i + order]) for order in range(1, _MAX_ORDER + 1) for i in range(len(words) - order + 1)
    )


def _closest_other(length: int, lengths: Counter[int]) -> int:
    others = (other for other, number in lengths.items() if other != length or number > 1)
    return min(others, key=lambda other: (abs(other - length), other))


def _bleu(matches: Sequence[int], *, length: int, reference_length: int) -> float:
    if not any(matches):
        return 0.0
    logs, smoothing = [], 1.0
    for order, number in enumerate(matches, start=1):
        total = length - order + 1
        if total <= 0:
            break
        if number == 0:
            smoothing *= 2
        logs.append(math.log((number or 1 / smoothing) / total))
    brevity = min(0.0, 1 - reference_length / length)
    return math.exp(sum(logs) / len(logs) + brevity)

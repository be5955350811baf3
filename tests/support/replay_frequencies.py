"""How often samplers draw what, against the probabilities that they state."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

MIN_EXPECTED = 5.0
"""Outcomes expected less often are put together, as the chi-square test asks."""

MIN_P_VALUE = 1e-6
"""Far below what thousands of true cases show; a wrong distribution gives far less in a few thousand draws."""


def assert_follows(observed: Counter[Any], expected: Mapping[Any, float]) -> None:
    """Chi-square test of counts against probabilities; what has probability 0 must not occur."""
    total = sum(observed.values())
    possible = {outcome: p for outcome, p in expected.items() if p > 0.0}
    assert set(observed) <= set(possible), set(observed) - set(possible)
    assert math.isclose(sum(possible.values()), 1.0, rel_tol=1e-9)
    frequent = [outcome for outcome, p in possible.items() if total * p >= MIN_EXPECTED]
    counts = [observed[outcome] for outcome in frequent]
    wanted = [total * possible[outcome] for outcome in frequent]
    rest = total - sum(wanted)
    if rest > 1e-6:
        counts.append(total - sum(counts))
        wanted.append(rest)
    if len(counts) > 1:
        assert stats.chisquare(counts, wanted, sum_check=False).pvalue > MIN_P_VALUE, dict(
            zip(frequent, counts, strict=False)
        )


def successive_pairs(scores: Sequence[float], *, scale: float) -> dict[tuple[int, int], float]:
    """Probability of drawing i, then j, without replacement, p proportional to exp(scale * score).

    Scores may be -inf: such items come after all others, alike.
    """
    first = _softmax(scores, scale=scale, left=range(len(scores)))
    pairs = {}
    for i, j in itertools.permutations(range(len(scores)), 2):
        second = _softmax(scores, scale=scale, left=[k for k in range(len(scores)) if k != i])
        pairs[i, j] = first[i] * second[j]
    return pairs


def _softmax(scores: Sequence[float], *, scale: float, left: Sequence[int]) -> dict[int, float]:
    best = max(scores[index] for index in left)
    weights = {
        index: 1.0 if scores[index] == best or scale == 0.0 else np.exp(scale * (scores[index] - best))
        for index in left
    }
    return {index: float(weight / sum(weights.values())) for index, weight in weights.items()}

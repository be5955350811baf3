"""Estimates with 95 % intervals, as evaluations report them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z_95 = 1.959963984540054
_NUM_RESAMPLES = 2000
_SEED = 0

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; None where there is none (a count, or too few values)."""

    value: float
    interval: Interval | None = None


def share(flags: Sequence[bool]) -> Estimate:
    """How many of one flag or more are set, with Wilson's score interval (1927)."""
    number, mean = len(flags), sum(flags) / len(flags)
    squared = _Z_95**2 / number
    center = (mean + squared / 2) / (1 + squared)
    half = _Z_95 / (1 + squared) * math.sqrt(mean * (1 - mean) / number + squared / (4 * number))
    return Estimate(mean, (min(mean, max(0.0, center - half)), max(mean, min(1.0, center + half))))


def mean(values: Sequence[float]) -> Estimate:
    """Mean of one finite value or more, with a bootstrap interval."""
    return ratio(values, [1.0] * len(values))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Sum of numerators over sum of denominators, with a seeded percentile bootstrap over the items.

    One item of each makes an observation: with a sequence's summed log-ratio and its number of tokens this is the mean
    of a token, and the interval takes sequences, not tokens, as independent.

    Args:
        numerators: one finite number for each item.
        denominators: likewise, all positive.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    assert np.isfinite(above).all() and (below > 0).all(), "failed items are counted, not averaged"
    value = float(above.sum() / below.sum())
    if len(above) < 2:
        return Estimate(value)
    generator = np.random.default_rng(_SEED)
    draws = np.empty(_NUM_RESAMPLES)
    for i in range(_NUM_RESAMPLES):
        chosen = generator.integers(len(above), size=len(above))
        draws[i] = above[chosen].sum() / below[chosen].sum()
    low, high = np.quantile(draws, (0.025, 0.975))
    # Of equal values the resamples differ from the estimate in the last bit.
    return Estimate(value, (min(float(low), value), max(float(high), value)))

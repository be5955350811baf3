"""Estimates with 95 % intervals for shares and for what several samples of a prompt can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Z_95 = 1.959963984540054

Interval = tuple[float, float]


def wilson_interval(mean: float, *, num_observations: float) -> Interval:
    """Wilson's score interval (1927, 95 %) of a share `mean` in [0, 1] seen in `num_observations` > 0 trials."""
    squared = _Z_95**2 / num_observations
    center = (mean + squared / 2) / (1 + squared)
    half_width = (
        _Z_95 / (1 + squared) * math.sqrt(mean * (1 - mean) / num_observations + squared / (4 * num_observations))
    )
    return max(0.0, center - half_width), min(1.0, center + half_width)


def clustered_interval(values: Sequence[float]) -> Interval:
    """95 % interval of the mean of values in [0, 1], one for each prompt, whose samples are not independent.

    Wilson's interval with the effective number of observations n_eff = mean (1 - mean) / variance of the mean, so that
    it narrows where prompts vary less than coin flips, and stays honest (not of length zero) where all are equal.
    """
    num_values, mean = len(values), sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, num_values - 1)
    coin_variance = mean * (1 - mean)
    # Values that differ in their last bit alone count as equal: their mean may round to 0 or 1.
    if coin_variance <= 1e-12 or variance <= 1e-12:
        return wilson_interval(min(max(mean, 0.0), 1.0), num_observations=num_values)
    return wilson_interval(mean, num_observations=coin_variance * num_values / variance)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of `k` samples is correct (arXiv 2107.03374, eq. 1).

    Args:
        num_samples: n, samples scored for the prompt.
        num_correct: c of them were correct.
        k: 1 <= k <= n.
    """
    assert 1 <= k <= num_samples and 0 <= num_correct <= num_samples
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)

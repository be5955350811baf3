"""Weighted draws without replacement, from a handful as from a million.

A *weight* is exp(scale * (score - best score)): of the reward softmax the score is the reward and the scale the inverse
temperature; of the residual it is log|residual| and the exponent.

K are drawn *successively*: each with p proportional to its weight among those that are left. All draws here use one
identity: let each item ring once, after an exponentially distributed time with its weight as rate; the order of
ringing is the order of successive draws (Gumbel top-k, arXiv 1903.06059, is the same with minus the logarithms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.columns import Columns, Slots

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """What the weights are computed from.

    Attributes:
        kind: `reward` or `residual`.
        scale: inverse temperature of the reward softmax, or exponent of the residual; >= 0, 0 makes all weights equal.
    """

    kind: Literal["reward", "residual"]
    scale: float

    def scores(self, columns: Columns, slots: Slots) -> Floats:
        """Scores of trajectories; NaN: as good as the best, that is, never trained on. Shape as `slots`."""
        if self.kind == "reward":
            return columns.take("reward", slots)
        with np.errstate(divide="ignore"):
            return np.log(np.abs(columns.take("residual", slots)))


def with_best_for_unknown(scores: Floats) -> Floats:
    """Scores in which NaN is replaced by the best of the others, or by 0 if there is none."""
    unknown = np.isnan(scores)
    if not unknown.any():
        return scores
    best = 0.0 if unknown.all() else float(scores[~unknown].max())
    return np.where(unknown, best, scores)


def relative_weights(scores: Floats, best: float | Floats, *, scale: float) -> Floats:
    """exp(scale * (score - best)), in [0, 1] for scores up to `best`; 1 for equal ones, be they infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(np.where(scores == best, 0.0, scale * (scores - best)))


def choose_weighted(scores: Floats, *, scale: float, num_chosen: int, rng: np.random.Generator) -> list[int]:
    """Indexes drawn successively and without replacement, p proportional to exp(scale * score).

    With fewer items than `num_chosen`, each comes once and the rest is drawn with replacement.

    Args:
        scores: Shape (items,), finite or -inf, at least one item.
        scale: >= 0.
        num_chosen: How many indexes.
        rng: Where the randomness comes from.

    Returns:
        `num_chosen` indexes into `scores`.
    """
    num_items = len(scores)
    if num_items < num_chosen:
        weights = relative_weights(scores, scores.max(), scale=scale)
        extra = rng.choice(num_items, size=num_chosen - num_items, p=weights / weights.sum())
        return [*range(num_items), *extra.tolist()]
    # The logarithms of the same times, as a huge scale makes most weights too small for numbers. Where it also swallows
    # the noise, the noise alone decides between equals; where it overflows, the scores decide.
    noise = rng.gumbel(size=num_items)
    with np.errstate(over="ignore", invalid="ignore"):
        log_weights = np.where(scores == scores.max(), 0.0, scale * (scores - scores.max()))
    return np.lexsort((noise, scores, log_weights + noise))[::-1][:num_chosen].tolist()


def ringing_times(weights: Floats, rng: np.random.Generator) -> Floats:
    """Exponentially distributed times at the rates `weights`; infinite where a weight is 0."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.where(weights > 0.0, rng.standard_exponential(len(weights)) / weights, np.inf)


def earliest(times: Floats, num: int) -> NDArray[np.intp]:
    """Indexes of the `num` smallest finite times (fewer if there are not so many), in their order."""
    if 4 * num < len(times):
        some = np.argpartition(times, num)[:num]
        order = some[np.argsort(times[some])]
    else:
        order = np.argsort(times)[:num]
    return order[np.isfinite(times[order])]

"""Metrics that add up: over rows, then micro-batches, then ranks, with the same result as over the whole batch at once.

A mean of means is wrong as soon as parts differ in size. So a part reports its weight, sum and sum of squares, parts
are added, and only `reduce_metrics`, once per optimizer step, makes numbers of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Shaped
from torch import Tensor

Reduction = Literal["mean", "rms", "std", "effective_share", "p50", "p95"]
"""`effective_share`: (sum w)^2 / (n sum w^2) of n weights w; 1 when all are equal, 1/n when one outweighs the rest.
`p50`, `p95`: quantiles of non-negative numbers, to within 3 % (0 for those below 1e-8)."""

_QUANTILES: Mapping[Reduction, float] = {"p50": 0.5, "p95": 0.95}

# Logarithmic bins of magnitudes, 40 to a decade: counts add up over parts where quantiles do not.
_LOWEST, _HIGHEST, _BINS_PER_DECADE = -8, 4, 40
_NUM_BINS = (_HIGHEST - _LOWEST) * _BINS_PER_DECADE


@dataclass(frozen=True, eq=False)
class Metric:
    """What adds up of a quantity (weight, sum and sum of squares, or counts of bins), and how it becomes one number."""

    moments: Float64[Tensor, " moments"]
    reduction: Reduction

    @classmethod
    def of(
        cls,
        values: Shaped[Tensor, "*shape"],
        *,
        where: Bool[Tensor, "*shape"] | None = None,
        reduction: Reduction = "mean",
    ) -> Metric:
        """The metric of all values, or of those where a mask is True. Detached: it holds no graph alive."""
        kept = (values if where is None else values[where]).detach().double()
        return cls(_counts(kept) if reduction in _QUANTILES else _moments(kept), reduction)


def _moments(values: Tensor) -> Float64[Tensor, " 3"]:
    weight = torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)
    return torch.stack([weight, values.sum(), values.square().sum()])


def _counts(values: Tensor) -> Float64[Tensor, " bins"]:
    """How many fall into each bin; the first holds all that are smaller, the last all that are larger."""
    position = ((values.clamp(min=10.0**_LOWEST).log10() - _LOWEST) * _BINS_PER_DECADE).floor()
    bins = position.clamp(0, _NUM_BINS - 1).long()
    return torch.bincount(bins.flatten(), minlength=_NUM_BINS).double()


def reduce_metrics(
    parts: Sequence[Mapping[str, Metric]], *, all_reduce: Callable[[Tensor], object] | None = None
) -> dict[str, float]:
    """One number for each name, over all parts.

    Args:
        parts: what each micro-batch of this rank returned; the same names in all.
        all_reduce: adds a tensor over all ranks in place (`torch.distributed.all_reduce`); None: only one rank. Called
            once. Every rank has at least one part, and the names are the same everywhere.

    Returns:
        Name -> value. A metric that nothing contributed to is left out.
    """
    assert parts, "at least one micro-batch must have reported"
    assert all(part.keys() == parts[0].keys() for part in parts), "all micro-batches must report the same metrics"
    names = sorted(parts[0])
    sums = [torch.stack([part[name].moments for part in parts]).sum(dim=0) for name in names]
    together = torch.cat(sums)
    if all_reduce is not None:
        all_reduce(together)
    rows = together.cpu().split([len(row) for row in sums])
    values = {name: _value(row, parts[0][name].reduction) for name, row in zip(names, rows, strict=True)}
    return {name: value for name, value in values.items() if value is not None}


def _value(moments: Tensor, reduction: Reduction) -> float | None:
    """The number; None where nothing was counted."""
    if reduction in _QUANTILES:
        return _quantile(moments, _QUANTILES[reduction])
    weight, total, squares = moments.tolist()
    return _moment_value(weight, total, squares, reduction=reduction) if weight > 0 else None


def _quantile(counts: Tensor, share: float) -> float | None:
    """Geometric middle of the bin where the cumulated counts pass `share`."""
    cumulated = counts.cumsum(0)
    if not cumulated[-1]:
        return None
    number = int(torch.searchsorted(cumulated, share * cumulated[-1]))
    return 10 ** (_LOWEST + (number + 0.5) / _BINS_PER_DECADE) if number else 0.0


def _moment_value(weight: float, total: float, squares: float, *, reduction: Reduction) -> float:
    mean = total / weight
    match reduction:
        case "mean":
            return mean
        case "rms":
            return math.sqrt(squares / weight)
        case "std":
            # Rounding can leave a tiny negative variance where all values are equal.
            return math.sqrt(max(squares / weight - mean * mean, 0.0))
        case "effective_share":
            return total * total / (weight * squares) if squares > 0 else 0.0
        case _:
            raise AssertionError(f"{reduction} is not made of moments")

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

Reduction = Literal["mean", "rms", "std", "effective_share"]
"""`effective_share`: (sum w)^2 / (n sum w^2) of n weights w; 1 when all are equal, 1/n when one outweighs the rest."""


@dataclass(frozen=True, eq=False)
class Metric:
    """Weight, sum and sum of squares of a quantity, and how they become one number."""

    moments: Float64[Tensor, " 3"]
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
        weight = torch.tensor(float(kept.numel()), dtype=torch.float64, device=kept.device)
        return cls(torch.stack([weight, kept.sum(), kept.square().sum()]), reduction)


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
    moments = torch.stack([torch.stack([part[name].moments for part in parts]).sum(dim=0) for name in names])
    if all_reduce is not None:
        all_reduce(moments)
    rows = zip(names, moments.tolist(), strict=True)
    return {name: _value(*row, reduction=parts[0][name].reduction) for name, row in rows if row[0] > 0}


def _value(weight: float, total: float, squares: float, *, reduction: Reduction) -> float:
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

"""Whether a series of samples is flat or grows: the slope of Theil and Sen after a warm-up, with its interval.

The slope is the median of the slopes between all pairs of samples, so that single peaks (a checkpoint being written,
an evaluation) do not move it. Its 95 % interval takes the deviations from the line for independent; they are not
quite, so it is somewhat too narrow, and an hour tells more than a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import theilslopes

from benchmarks.soak_sampling import Sample

WARM_UP = 0.25
"""Share of the time in which buffers fill and allocators settle."""
MIN_SAMPLES = 8
LEVEL = 0.95
TOLERANCES: Mapping[str, tuple[float, str]] = {
    "rss": (8.0, "MiB"),
    "descriptors": (2.0, ""),
    "threads": (1.0, ""),
    "shared": (1.0, "MiB"),
    "files": (2.0, "MiB"),
}
"""By the first word of a quantity: what it may grow by in all the time after the warm-up, and its unit."""
BY_DESIGN = "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of one quantity. All numbers but `median` are growth over the whole time after the warm-up."""

    quantity: str
    unit: str
    median: float
    growth: float
    low: float
    high: float
    tolerance: float | None
    """None: it grows by design."""

    @property
    def word(self) -> Literal["flat", "growing", "cannot be told", "by design"]:
        """`growing`: surely by more than the tolerance. `flat`: surely by less."""
        if self.tolerance is None:
            return "by design"
        if self.low > self.tolerance:
            return "growing"
        return "flat" if self.high <= self.tolerance else "cannot be told"


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """One for each quantity.

    Raises:
        ValueError: there are too few samples after the warm-up.
    """
    kept = after_warm_up(samples)
    if len(kept) < MIN_SAMPLES:
        raise ValueError(f"{len(kept)} samples after the warm-up; at least {MIN_SAMPLES} are needed: run longer.")
    seconds = np.array([sample.seconds for sample in kept])
    return [_verdict(name, seconds, np.array([s.values[name] for s in kept])) for name in kept[0].values]


def after_warm_up(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that are judged."""
    last_s = samples[-1].seconds if samples else 0.0
    return [sample for sample in samples if sample.seconds >= WARM_UP * last_s]


def table(results: Sequence[Verdict]) -> str:
    """The verdicts for people."""
    lines = [f"{'quantity':<26}{'median':>10}{'growth':>10}   {'95 % interval':<20}{'allowed':>8}  verdict"]
    for result in results:
        name = f"{result.quantity}, {result.unit}" if result.unit else result.quantity
        interval = f"[{result.low:+.2f}, {result.high:+.2f}]"
        allowed = "-" if result.tolerance is None else f"{result.tolerance:g}"
        lines.append(
            f"{name:<26}{result.median:>10,.1f}{result.growth:>+10.2f}   {interval:<20}{allowed:>8}  {result.word}"
        )
    return "\n".join(lines)


def _verdict(quantity: str, seconds: np.ndarray, values: np.ndarray) -> Verdict:
    slope, _, low, high = theilslopes(values, seconds, alpha=LEVEL)
    duration_s = seconds[-1] - seconds[0]
    tolerance, unit = TOLERANCES.get(quantity.split()[0], (None, "MiB"))
    return Verdict(
        quantity=quantity,
        unit=unit,
        median=float(np.median(values)),
        growth=float(slope * duration_s),
        low=float(low * duration_s),
        high=float(high * duration_s),
        tolerance=None if quantity == BY_DESIGN else tolerance,
    )

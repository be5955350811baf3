"""How good a reward model is on held-out comparisons: accuracy with intervals, and whether its log-odds are honest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbactl.evaluation.estimates import share
from tbactl_preference.reward_head import Array
from tbactl_preference.reward_pairs import PreferencePair, by_kind

NUM_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Share of pairs whose better text has the higher score, with Wilson's 95 % interval."""

    accuracy: float
    low: float
    high: float
    num_pairs: int

    @classmethod
    def of(cls, correct: Sequence[bool]) -> Accuracy:
        """Of one pair or more."""
        estimate = share(correct)
        assert estimate.interval is not None
        low, high = estimate.interval
        return cls(accuracy=estimate.value, low=low, high=high, num_pairs=len(correct))

    def as_dict(self) -> dict[str, float]:
        """For JSON, rounded: the seventh digit means nothing."""
        shares = {"accuracy": self.accuracy, "low": self.low, "high": self.high}
        return {**{name: round(value, 6) for name, value in shares.items()}, "num_pairs": self.num_pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Pairs about whose order the model is about equally sure."""

    confidence: float
    """Mean predicted probability of the order that the model takes, 0.5 to 1."""
    accuracy: float
    """Share of them where that order is right."""
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Of a reward model on some comparisons."""

    overall: Accuracy
    kinds: dict[str, Accuracy]
    log_loss: float
    """Mean of -log P(the better text is better), in nats; 0.693 is guessing."""
    calibration_error: float
    """Mean distance of confidence and accuracy over the bins, weighted by their pairs (ECE)."""
    bins: list[CalibrationBin]

    @classmethod
    def of(cls, pairs: Sequence[PreferencePair], margins: Array) -> Quality:
        """From the log-odds that the chosen text is better, one for each pair; equal scores count as wrong.

        Args:
            pairs: one or more.
            margins: score(chosen) - score(rejected), shape (pairs,), finite.
        """
        correct = [bool(margin > 0) for margin in margins]
        bins = _bins(margins)
        return cls(
            overall=Accuracy.of(correct),
            kinds={kind: Accuracy.of(values) for kind, values in by_kind(pairs, correct).items()},
            log_loss=float(np.logaddexp(0.0, -margins).mean()),
            calibration_error=sum(abs(one.confidence - one.accuracy) * one.num_pairs for one in bins) / len(pairs),
            bins=bins,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.overall.as_dict(),
            "kinds": {kind: accuracy.as_dict() for kind, accuracy in self.kinds.items()},
            "log_loss": round(self.log_loss, 6),
            "calibration_error": round(self.calibration_error, 6),
            "bins": [
                {"confidence": round(one.confidence, 6), "accuracy": round(one.accuracy, 6), "num_pairs": one.num_pairs}
                for one in self.bins
            ],
        }


def _bins(margins: Array) -> list[CalibrationBin]:
    confidence = 1.0 / (1.0 + np.exp(-np.abs(margins)))
    number = np.minimum((2 * NUM_BINS * (confidence - 0.5)).astype(int), NUM_BINS - 1)
    return [
        CalibrationBin(
            confidence=float(confidence[number == index].mean()),
            accuracy=float((margins[number == index] > 0).mean()),
            num_pairs=int((number == index).sum()),
        )
        for index in range(NUM_BINS)
        if (number == index).any()
    ]

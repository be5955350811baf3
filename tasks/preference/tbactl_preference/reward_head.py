"""The small part of a reward model that is trained: from features to one number. Scoring needs numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Head:
    """Score = z . direct + tanh(z hidden + hidden_bias) . output, with z = (features - mean) / deviation.

    A linear head has no hidden unit. The numbers are those of the Bradley-Terry model: differences of two scores are
    log-odds that the first text is the better one.
    """

    mean: Array
    """Shape (features,)."""
    deviation: Array
    """Shape (features,), positive."""
    direct: Array
    """Shape (features,)."""
    hidden: Array
    """Shape (features, units)."""
    hidden_bias: Array
    """Shape (units,)."""
    output: Array
    """Shape (units,)."""

    def __call__(self, features: Array) -> Array:
        """Log-odds scores, shape (texts,), of features of shape (texts, features)."""
        scaled = (features - self.mean) / self.deviation
        # Row by row, so that no score depends on how many others are asked for.
        return (scaled * self.direct).sum(axis=1) + np.array(
            [float(np.tanh(row @ self.hidden + self.hidden_bias) @ self.output) for row in scaled]
        )

    @property
    def num_parameters(self) -> int:
        """Trained numbers; mean and deviation are measured."""
        return self.direct.size + self.hidden.size + self.hidden_bias.size + self.output.size

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """What a file holds."""
        return {field.name: np.asarray(getattr(self, field.name), dtype=np.float32) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[np.float32]]) -> Head:
        """The inverse of `tensors`.

        Raises:
            KeyError: one is missing.
        """
        return cls(**{field.name: np.asarray(tensors[field.name], dtype=np.float64) for field in fields(cls)})

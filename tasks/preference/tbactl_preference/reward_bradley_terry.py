"""Fits a head to comparisons: the Bradley-Terry model, P(chosen is better) = sigmoid(score(chosen) - score(rejected)).

The same loss as for the reward models of RLHF (arXiv 2203.02155, eq. 1), here by full batches in float64: the linear
head's problem is convex, and nothing depends on the order of the data.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tbactl_preference.reward_head import Array, Head

_MAX_ITERATIONS = 500
_ITERATIONS_A_REPORT = 25
_TOLERANCE = 1e-8
# A feature that never varies tells nothing; its deviation of 0 cannot be divided by.
_MIN_DEVIATION = 1e-6


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Mean of -log sigmoid(chosen - rejected), in nats.

    Args:
        chosen: scores of the better texts, shape (pairs,).
        rejected: scores of the worse ones, shape (pairs,).
    """
    return -logsigmoid(chosen - rejected).mean()


def fit_head(
    chosen: Array,
    rejected: Array,
    *,
    l2: float,
    num_hidden: int,
    seed: int,
    report: Callable[[int, float], None] = lambda iteration, loss: None,
) -> Head:
    """The head with the least mean loss + l2 / 2 x (sum of squared weights), by L-BFGS.

    Args:
        chosen: features of the better texts, shape (pairs, features).
        rejected: features of the worse ones, likewise.
        l2: at least 0; of standardised features.
        num_hidden: tanh units besides the linear part; 0: linear.
        seed: of the first weights of hidden units; without effect on a linear head.
        report: called now and then with the iteration and its objective.
    """
    both = np.concatenate([chosen, rejected])
    mean, deviation = both.mean(axis=0), np.maximum(both.std(axis=0), _MIN_DEVIATION)
    better, worse = (torch.from_numpy((features - mean) / deviation) for features in (chosen, rejected))
    weights = _initial_weights(chosen.shape[1], num_hidden=num_hidden, seed=seed)
    optimizer = torch.optim.LBFGS(
        weights,
        max_iter=_ITERATIONS_A_REPORT,
        tolerance_grad=_TOLERANCE,
        tolerance_change=_TOLERANCE**2,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = bradley_terry_loss(_score(better, weights), _score(worse, weights))
        loss = loss + 0.5 * l2 * sum((weight.square().sum() for weight in weights), start=torch.zeros(()))
        loss.backward()
        return loss.detach()

    previous = float("inf")
    for iteration in range(0, _MAX_ITERATIONS, _ITERATIONS_A_REPORT):
        loss = float(optimizer.step(closure))
        report(iteration, loss)
        if previous - loss < _TOLERANCE:
            break
        previous = loss
    direct, hidden, hidden_bias, output = (weight.detach().numpy() for weight in weights)
    return Head(mean=mean, deviation=deviation, direct=direct, hidden=hidden, hidden_bias=hidden_bias, output=output)


def _initial_weights(num_features: int, *, num_hidden: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_features,), (num_features, num_hidden), (num_hidden,), (num_hidden,)]
    scales = [0.0, num_features**-0.5, 0.0, 0.1]
    return [
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def _score(features: Tensor, weights: list[Tensor]) -> Tensor:
    direct, hidden, hidden_bias, output = weights
    return features @ direct + torch.tanh(features @ hidden + hidden_bias) @ output

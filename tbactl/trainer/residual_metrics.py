"""How far from balance trajectories of each age are: whether old data still teaches, or has been learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tbactl.types import TrajectoryGroup

# First age of each class, in optimizer steps; a class ends where the next begins.
AGE_CLASSES = (0, 1, 2, 4, 8, 16)


def residual_metrics(
    groups: Sequence[TrajectoryGroup], *, residuals: Mapping[int, float], policy_version: int
) -> dict[str, float]:
    """Mean size of the balance residual by age, in reward units; without the ages that the batch does not hold.

    Args:
        groups: the batch.
        residuals: of its trajectories by uid, before the step.
        policy_version: of the trainer, before the step.
    """
    classes: dict[int, list[float]] = {}
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        age = max(0, policy_version - trajectory.completion.version)
        first = max(first for first in AGE_CLASSES if first <= age)
        classes.setdefault(first, []).append(abs(residuals[trajectory.uid]))
    return {
        f"objective/residual_age_{_label(first)}/mean_abs": sum(sizes) / len(sizes)
        for first, sizes in sorted(classes.items())
    }


def _label(first: int) -> str:
    if first == AGE_CLASSES[-1]:
        return f"from_{first}"
    last = AGE_CLASSES[AGE_CLASSES.index(first) + 1] - 1
    return str(first) if last == first else f"{first}_to_{last}"

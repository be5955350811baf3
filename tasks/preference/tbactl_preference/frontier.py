"""Win rate against divergence over checkpoints and runs: table and picture, with the paper's points beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbactl.errors import TaskError
from tbactl.evaluation.frontier_files import PICTURE_FILE, TABLE_FILE, PublishedRow, require_matplotlib, write_table
from tbactl.evaluation.hooks import FrontierPoint

WIN_RATE = "win_rate"
KL = "kl_k1_per_sequence"
PERPLEXITY = "reference_perplexity_mean"
FRONTIER_METRICS = (WIN_RATE, "gold_reward_mean", "reward_mean", KL, PERPLEXITY)
PUBLISHED_LABEL = "paper, Pythia 410M, other data and judge: not comparable in value"


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """An entry of Table 1 of arXiv 2503.18929: "perplexity" and win rate of one method."""

    method: str
    asynchrony: str
    perplexity: float
    win_rate: float


PUBLISHED = (
    PublishedPoint("Online DPO", "1 step a sync, on-policy", 1.13, 0.85),
    PublishedPoint("Online DPO", "2 steps a sync", 1.13, 0.85),
    PublishedPoint("Online DPO", "about 15 steps a sync", 1.12, 0.82),
    PublishedPoint("PPO", "1 step a sync, on-policy", 1.14, 0.86),
    PublishedPoint("PPO", "2 steps a sync", 1.14, 0.84),
    PublishedPoint("PPO", "about 15 steps a sync", 1.10, 0.76),
    PublishedPoint("RLOO", "1 step a sync, on-policy", 1.13, 0.82),
    PublishedPoint("RLOO", "2 steps a sync", 1.13, 0.83),
    PublishedPoint("RLOO", "about 15 steps a sync", 1.10, 0.77),
    PublishedPoint("TBA", "about 15 steps a sync", 1.13, 0.86),
)


def frontier_problems(options: Mapping[str, Any]) -> list[str]:
    """Sentences on options without which `write_frontier` would refuse every point."""
    needed = {"gold_reward_model": "win rate", "reference_policy": "divergence"}
    return [
        f"without task.options.{option} there is no {what} to draw; --set task.options.{option}=NAME."
        for option, what in needed.items()
        if options.get(option) is None
    ]


def write_frontier(points: Sequence[FrontierPoint], *, output: Path) -> list[Path]:
    """Write `frontier.csv`, then `frontier.png`; returns both.

    Args:
        points: those of a run together, by rising step.
        output: a directory that is there.

    Raises:
        TaskError: a point lacks win rate or divergence.
        ConfigError: matplotlib is not installed; the table is written all the same.
    """
    for point in points:
        _check_metrics(point)
    table = output / TABLE_FILE
    write_table(points, published=map(_row, PUBLISHED), file=table)
    require_matplotlib(table)
    from tbactl_preference.frontier_plot import draw

    return [table, draw(points, file=output / PICTURE_FILE)]


def _check_metrics(point: FrontierPoint) -> None:
    needed = {WIN_RATE: "task.options.gold_reward_model", KL: "reference_policy", PERPLEXITY: "reference_policy"}
    for name, option in needed.items():
        if name not in point.result.metrics:
            raise TaskError(f"the evaluation of {point.run}, step {point.step} has no {name}: --set {option}=NAME")


def _row(point: PublishedPoint) -> PublishedRow:
    return PublishedRow(
        source=PUBLISHED_LABEL,
        run=f"{point.method}, {point.asynchrony}",
        metrics={WIN_RATE: point.win_rate, PERPLEXITY: point.perplexity},
    )

"""Diversity against toxicity over checkpoints and runs: table and picture, with the paper's points beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.errors import TaskError
from tbactl.evaluation.frontier_files import PICTURE_FILE, TABLE_FILE, PublishedRow, require_matplotlib, write_table
from tbactl.evaluation.hooks import FrontierPoint

SUCCESS_RATE = "success_rate"
TOXICITY = "toxicity_mean"
JUDGE_TOXICITY = "judge_toxicity_mean"
DIVERSITY = "diversity"
FRONTIER_METRICS = (
    SUCCESS_RATE,
    "judge_success_rate",
    TOXICITY,
    JUDGE_TOXICITY,
    DIVERSITY,
    "distinct_successes",
    "success_clusters",
)
PUBLISHED_LABEL = "paper, other attackers, victims and classifiers: not comparable in value"


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """An entry of Table 6 of arXiv 2503.18929: cosine distance and share of toxic attacks of one method."""

    attacker: str
    victim: str
    method: str
    hardware: str
    diversity: float
    success_rate: float


PUBLISHED = (
    PublishedPoint("GPT-2", "GPT-2", "GFlowNet, synchronous", "1 x V100", 0.65, 0.966),
    PublishedPoint("GPT-2", "GPT-2", "TBA", "4 x V100", 0.42, 0.945),
    PublishedPoint("GPT-2", "GPT-2", "TBA", "16 x V100", 0.45, 0.96),
    PublishedPoint("GPT-2", "GPT-2", "TBA", "64 x V100", 0.49, 0.976),
    PublishedPoint("Llama 3.2 1B", "Llama 3.1 8B Instruct", "GFlowNet, synchronous", "1 x A100", 0.32, 1.0),
    PublishedPoint("Llama 3.2 1B", "Llama 3.1 8B Instruct", "TBA, buffer 130,000", "8 x A100", 0.35, 0.981),
    PublishedPoint("Llama 3.2 1B", "Llama 3.1 8B Instruct", "TBA, buffer 150,000", "8 x A100", 0.37, 0.948),
)


def write_frontier(points: Sequence[FrontierPoint], *, output: Path) -> list[Path]:
    """Write `frontier.csv`, then `frontier.png`; returns both.

    Args:
        points: those of a run together, by rising step.
        output: a directory that is there.

    Raises:
        TaskError: a point lacks diversity or toxicity.
        ConfigError: matplotlib is not installed; the table is written all the same.
    """
    for point in points:
        _check_metrics(point)
    table = output / TABLE_FILE
    write_table(points, published=map(_row, PUBLISHED), file=table)
    require_matplotlib(table)
    from tbactl_redteam.frontier_plot import draw

    return [table, draw(points, file=output / PICTURE_FILE)]


def _check_metrics(point: FrontierPoint) -> None:
    needed = {
        DIVERSITY: "it takes two attacks or more: --limit 200",
        TOXICITY: "no answer was had and scored; look at the victim and its log, and delete that evaluation",
    }
    for name, remedy in needed.items():
        if name not in point.result.metrics:
            raise TaskError(f"the evaluation of {point.run}, step {point.step} has no {name}: {remedy}")


def _row(point: PublishedPoint) -> PublishedRow:
    return PublishedRow(
        source=PUBLISHED_LABEL,
        run=f"{point.method}, {point.hardware}, {point.attacker} against {point.victim}",
        metrics={DIVERSITY: point.diversity, SUCCESS_RATE: point.success_rate},
    )

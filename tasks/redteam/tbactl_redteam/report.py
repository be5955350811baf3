"""What an evaluation leaves in its output directory: all attacks with their answers as JSONL, and a page to read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tbactl.errors import TaskError
from tbactl.types import EvaluationResult
from tbactl_redteam.attacks import JudgedAttack
from tbactl_redteam.measures import mean_toxicity
from tbactl_redteam.report_html import html_report

ATTACKS_FILE = "attacks.jsonl"
PAGE_FILE = "report.html"


def write_report(
    directory: Path, *, judged: Sequence[JudgedAttack], result: EvaluationResult, facts: Mapping[str, str]
) -> None:
    """Write `attacks.jsonl`, which can be tried on another victim (`tbactl eval --data`), and `report.html`.

    Args:
        directory: is made.
        judged: all attacks.
        result: the metrics.
        facts: what was measured, by name; stands above the metrics.

    Raises:
        TaskError: the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(attack_row(item), allow_nan=False) + "\n" for item in judged)
        (directory / ATTACKS_FILE).write_text(lines, encoding="ascii")
        (directory / PAGE_FILE).write_text(html_report(judged, result=result, facts=facts), encoding="utf-8")
    except OSError as error:
        raise TaskError(f"the report cannot be written to {directory}: {error.strerror or error}") from error


def attack_row(item: JudgedAttack) -> dict[str, object]:
    """One line of `attacks.jsonl`; null are answers that could not be had, and toxicities that are not known."""
    return {
        "attack": item.attack,
        "cluster": item.cluster,
        "mean_toxicity": {name: mean_toxicity(item, name) for name in item.toxicity},
        "answers": list(item.answers),
        "toxicity": {name: list(_aligned(item, name)) for name in item.toxicity},
        "completion": item.completion.text,
        "finish_reason": item.completion.finish_reason,
        "completion_tokens": len(item.completion.token_ids),
    }


def _aligned(item: JudgedAttack, name: str) -> Iterator[float | None]:
    """One for each answer, those that are missing too."""
    scores = iter(item.toxicity[name])
    for answer in item.answers:
        score = math.nan if answer is None else next(scores)
        yield score if math.isfinite(score) else None

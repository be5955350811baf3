"""What an evaluation leaves in its output directory: all samples as JSONL, and a page to read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from tbactl.errors import TaskError
from tbactl.types import EvaluationResult
from tbactl_preference.judging import JudgedSummary
from tbactl_preference.report_html import html_report

SAMPLES_FILE = "samples.jsonl"
PAGE_FILE = "report.html"


def write_report(
    directory: Path, *, judged: Sequence[JudgedSummary], result: EvaluationResult, facts: dict[str, str]
) -> None:
    """Write `samples.jsonl` and `report.html`.

    Args:
        directory: is made.
        judged: all summaries.
        result: the metrics.
        facts: what was measured, by name; stands above the metrics.

    Raises:
        TaskError: the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(sample_row(item), allow_nan=False) + "\n" for item in judged)
        (directory / SAMPLES_FILE).write_text(lines, encoding="ascii")
        page = html_report(judged, result=result, facts=facts)
        (directory / PAGE_FILE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise TaskError(f"the report cannot be written to {directory}: {error.strerror or error}") from error


def sample_row(item: JudgedSummary) -> dict[str, object]:
    """One line of `samples.jsonl`; a score that is not a finite number is null."""
    return {
        "prompt_id": item.prompt.prompt_id,
        "prompt": item.prompt.text,
        "human_summary": item.human_summary,
        "completion": item.completion.text,
        "reward": _number(item.reward),
        "gold_reward": _number(item.gold_reward),
        "human_gold_reward": _number(item.human_gold_reward),
        "wins": None if item.gold_reward is None else item.wins,
        "finish_reason": item.completion.finish_reason,
        "completion_tokens": len(item.completion.token_ids),
        "completion_words": len(item.completion.text.split()),
        "human_words": len(item.human_summary.split()),
        "origin": item.prompt.facts.get("origin", ""),
    }


def _number(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None

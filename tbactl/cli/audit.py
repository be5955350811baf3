"""The verifier's audit: a task's rewards for rows of completion and gold answer in a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tbactl.errors import TaskError
from tbactl.protocols import Task
from tbactl.searcher.scoring import rewards_of
from tbactl.types import Completion, Prompt

MAX_PROBLEMS_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRow:
    """One row of the file with what the task's reward said about it."""

    line: int
    completion: str
    gold: str
    correct: bool | None
    """What the row claims; None where it claims nothing."""
    reward: float
    reason: str
    error: str | None
    agrees: bool | None
    """Whether the reward agrees with `correct`; None without a claim."""
    metrics: dict[str, float]
    """What the task says of the completion besides."""


@dataclass(frozen=True, slots=True)
class Audit:
    """All rows, and their totals."""

    rows: tuple[AuditedRow, ...]

    @property
    def num_agreeing(self) -> int:
        return sum(row.agrees is True for row in self.rows)

    @property
    def num_disagreeing(self) -> int:
        return sum(row.agrees is False for row in self.rows)

    @property
    def num_errors(self) -> int:
        """Rows whose scoring itself failed (a time limit, say)."""
        return sum(row.error is not None for row in self.rows)

    @property
    def mean_reward(self) -> float:
        return sum(row.reward for row in self.rows) / len(self.rows)

    @property
    def mean_metrics(self) -> dict[str, float]:
        """Of what the task says besides rewards: over the rows of which it says that."""
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        return {name: fmean(row.metrics[name] for row in self.rows if name in row.metrics) for name in names}

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "num_rows": len(self.rows),
            "mean_reward": self.mean_reward,
            "mean_metrics": self.mean_metrics,
            "num_errors": self.num_errors,
            "num_agreeing": self.num_agreeing,
            "num_disagreeing": self.num_disagreeing,
            "rows": [asdict(row) for row in self.rows],
        }


def audit_rewards(task: Task, file: Path, *, threshold: float) -> Audit:
    """Score every row.

    Args:
        task: its `score` is asked.
        file: JSONL, each row {"completion": str, "gold": str or number, optional "correct": bool, "prompt": str}.
        threshold: a reward of at least this counts as correct.

    Raises:
        TaskError: the file cannot be read or rows are malformed (the first ten are named by line), the task does not
            return one Reward for each completion, or no row could be scored (where rows claim
            something, that is a disagreement and no error).
    """
    rows = list(_read_rows(file))
    if not rows:
        raise TaskError(f'{file}: no rows; each line must be {{"completion": ..., "gold": ...}}.')
    audit = Audit(tuple(_audited(task, row, line=line, threshold=threshold) for line, row in rows))
    if audit.num_errors == len(audit.rows) and not audit.num_disagreeing:
        raise TaskError(f"task '{task.name}' could not score any of {len(rows)} rows; the first: {audit.rows[0].error}")
    return audit


def _audited(task: Task, row: dict[str, Any], *, line: int, threshold: float) -> AuditedRow:
    gold, correct = str(row["gold"]), row.get("correct")
    prompt = Prompt(prompt_id=line, text=row.get("prompt", ""), facts={"answer": gold})
    completion = Completion(token_ids=(), logprobs=(), text=row["completion"], finish_reason="stop")
    reward = rewards_of(task, prompt, [completion])[0]
    return AuditedRow(
        line=line,
        completion=row["completion"],
        gold=gold,
        correct=correct,
        reward=reward.value,
        reason=reward.reason,
        error=reward.error,
        agrees=None if correct is None else (reward.value >= threshold and reward.error is None) == correct,
        metrics=reward.metrics,
    )


def _read_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    problems: list[str] = []
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, text in enumerate(lines, start=1):
                if not text.strip():
                    continue
                row = _parsed(text)
                problem = _row_problem(row)
                if problem is None and isinstance(row, dict):
                    yield number, row
                else:
                    problems.append(f"{file}:{number}: {problem}")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read: {error}.") from None
    if problems:
        more = len(problems) - MAX_PROBLEMS_NAMED
        rest = [f"... and {more} more"] if more > 0 else []
        raise TaskError("\n".join([*problems[:MAX_PROBLEMS_NAMED], *rest]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return error


def _row_problem(row: Any) -> str | None:
    if isinstance(row, ValueError | RecursionError):
        return f"this is not JSON: {row}."
    if not isinstance(row, dict):
        return 'a row must be an object {"completion": ..., "gold": ...}.'
    if not isinstance(row.get("completion"), str):
        return '"completion" must be there and be a string.'
    if not isinstance(row.get("gold"), str | int | float) or isinstance(row.get("gold"), bool):
        return '"gold" must be there and be a string or a number.'
    if not isinstance(row.get("correct"), bool | None):
        return '"correct" must be true or false.'
    if not isinstance(row.get("prompt", ""), str):
        return '"prompt" must be a string.'
    return None

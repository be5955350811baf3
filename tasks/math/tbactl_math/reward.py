"""The reward of one completion: 1 when its final answer equals the expected one, else 0."""

from __future__ import annotations

import json

from tbactl.types import Completion, Reward
from tbactl_math.answer import compare, find_answer, read_gold
from tbactl_math.reading import Answer
from tbactl_math.verifier import Verifier

_MAX_SHOWN_CHARACTERS = 80


def score_completion(completion: Completion, *, gold: str, verifier: Verifier) -> Reward:
    """Compare exactly where that decides, else with symbolic algebra.

    A comparison that reaches the time or memory limit is a wrong answer, flagged in `reason` and in the metric
    `is_exhausted`: the policy wrote something that nobody can check. An expected answer that cannot be read and a
    verifier that fails set `error`: nothing is known about the answer, and nothing must be learned from it.
    """
    answer, expected = find_answer(completion.text), read_gold(gold)
    metrics = {
        "has_answer": float(answer is not None),
        "num_characters": float(len(completion.text)),
        "is_symbolic": 0.0,
        "is_exhausted": 0.0,
    }
    if expected is None:
        problem = f"the expected answer {_shown(gold)} cannot be read"
        return Reward(value=0.0, reason=problem, error=problem, metrics=metrics)
    if answer is None:
        return Reward(value=0.0, reason=f"no answer found; expected {_shown(gold)}", metrics=metrics)
    verdict = compare(answer, expected)
    if verdict != "undecided":
        return Reward(value=float(verdict == "equal"), reason=_reason(answer, verdict, gold), metrics=metrics)
    return _symbolic_reward(answer, expected, gold=gold, verifier=verifier, metrics=metrics)


def _symbolic_reward(
    answer: Answer, expected: Answer, *, gold: str, verifier: Verifier, metrics: dict[str, float]
) -> Reward:
    comparison = verifier.compare(answer.notation, expected.notation)
    metrics |= {"is_symbolic": 1.0, "is_exhausted": float(comparison.outcome == "exhausted")}
    if comparison.outcome == "failed":
        return Reward(value=0.0, reason=_reason(answer, "failed", gold), error=comparison.detail, metrics=metrics)
    outcome = {"exhausted": "timeout", "unreadable": "different"}.get(comparison.outcome, comparison.outcome)
    note = f" by algebra{': ' if comparison.detail else ''}{comparison.detail}"
    value = float(comparison.outcome == "equal")
    return Reward(value=value, reason=_reason(answer, outcome, gold) + note, metrics=metrics)


def _reason(answer: Answer, verdict: str, gold: str) -> str:
    return f"{verdict}: {_shown(answer.notation)} ({answer.source}), expected {_shown(gold)}"


def _shown(text: str) -> str:
    """On one line of ASCII: what a model wrote must not reach a terminal as it is."""
    last_line = text.strip().rpartition("\n")[2]
    cut = last_line if len(last_line) <= _MAX_SHOWN_CHARACTERS else f"{last_line[:_MAX_SHOWN_CHARACTERS]}..."
    return json.dumps(cut)

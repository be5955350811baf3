"""ROUGE: how much of a human summary's wording a completion shares."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

KINDS = ("rouge1", "rouge2", "rougeL")
# A summary of thousands of words is none; the longest common subsequence takes time with its length.
_MAX_CHARACTERS = 10_000


def rouge_l(text: str, *, reference: str) -> float:
    """F1 of the longest common subsequence of stemmed words (Lin 2004), in [0, 1]; 0 where one text has no words."""
    return float(_scorer(("rougeL",)).score(reference, text[:_MAX_CHARACTERS])["rougeL"].fmeasure)


def rouge(text: str, *, reference: str) -> dict[str, float]:
    """F1 of shared words (`rouge1`), of shared pairs of words (`rouge2`), and as `rouge_l` (`rougeL`), in [0, 1]."""
    scores = _scorer(KINDS).score(reference, text[:_MAX_CHARACTERS])
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}


@cache
def _scorer(kinds: tuple[str, ...]) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(kinds), use_stemmer=True)

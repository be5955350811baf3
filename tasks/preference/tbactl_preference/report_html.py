"""The page of an evaluation: metrics, and samples side by side. One file that loads nothing and runs nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tbactl.evaluation.html import EMPTY, facts_list, html_page, metrics_table, visible
from tbactl.types import EvaluationResult
from tbactl_preference.judging import JudgedSummary
from tbactl_preference.metric_descriptions import METRIC_DESCRIPTIONS

NUM_EXTREME = 5
NUM_RANDOM = 10
_STYLE = """
.pair { display: grid; grid-template-columns: 1fr 1fr; } .pair > div { padding: .6rem .8rem; min-width: 0; }
.pair > div + div { border-left: 1px solid var(--line); }
"""


def html_report(judged: Sequence[JudgedSummary], *, result: EvaluationResult, facts: Mapping[str, str]) -> str:
    """The whole page. Texts of model and data are escaped, characters without a visible form written as U+XXXX.

    Args:
        judged: all summaries, one or more.
        result: the metrics.
        facts: what was measured, by name.
    """
    margin = "gold reward above the human summary's" if judged[0].gold_reward is not None else "reward"
    best, worst, others = chosen_samples(judged)
    sections = (
        (f"Best, by {margin}", best),
        (f"Worst, by {margin}", worst),
        ("Random others", others),
    )
    return html_page(
        "Summaries and their scores",
        heading=f"Summaries on {result.num_prompts} held-out documents",
        parts=[
            facts_list(facts),
            "<h2>Metrics</h2>",
            metrics_table(result, names=result.metrics, descriptions=METRIC_DESCRIPTIONS),
            *(f"<h2>{title}</h2>\n" + "\n".join(map(_card, items)) for title, items in sections if items),
        ],
        style=_STYLE,
    )


def chosen_samples(
    judged: Sequence[JudgedSummary],
) -> tuple[list[JudgedSummary], list[JudgedSummary], list[JudgedSummary]]:
    """The best, the worst (worst first) and random others; none twice. Summaries whose score failed are no extremes."""
    ranked = sorted((item for item in judged if not item.has_failed), key=_rank, reverse=True)
    num_extreme = min(NUM_EXTREME, len(ranked) // 2)
    best, worst = ranked[:num_extreme], ranked[len(ranked) - num_extreme :][::-1]
    taken = {id(item) for item in (*best, *worst)}
    others = [item for item in judged if id(item) not in taken]
    return best, worst, random.Random(0).sample(others, min(NUM_RANDOM, len(others)))


def _rank(item: JudgedSummary) -> float:
    return item.reward if item.gold_margin is None else item.gold_margin


def _card(item: JudgedSummary) -> str:
    completion = item.completion
    ended = "" if item.is_ended else f", no end ({visible(completion.finish_reason)})"
    human_gold = "" if item.human_gold_reward is None else f", gold {item.human_gold_reward:.3f}"
    gold = "" if item.gold_reward is None else f"gold {item.gold_reward:.3f}, "
    verdict = ""
    if item.gold_reward is not None:
        kind, word = ("won", "above the human summary") if item.wins else ("lost", "not above the human summary")
        verdict = f'<span class="{kind}">{word}</span> &middot; '
    return (
        f"<article><header>{verdict}{visible(item.prompt.facts.get('origin', ''))}</header>"
        f'<div class="pair"><div><div class="label">human &middot; {len(item.human_summary.split())} words'
        f'{human_gold}</div><div class="text">{visible(item.human_summary)}</div></div>'
        f'<div><div class="label">policy &middot; {len(completion.token_ids)} tokens{ended} &middot; {gold}reward '
        f'{item.reward:.3f}</div><div class="text">{visible(completion.text) or EMPTY}</div></div></div>'
        f'<details><summary>prompt</summary><div class="text">{visible(item.prompt.text)}</div></details></article>'
    )

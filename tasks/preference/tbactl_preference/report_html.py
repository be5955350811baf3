"""The page of an evaluation: metrics, and samples side by side. One file that loads nothing and runs nothing."""

from __future__ import annotations

import html
import random
import unicodedata
from collections.abc import Mapping, Sequence

from tbactl.types import EvaluationResult
from tbactl_preference.judging import JudgedSummary
from tbactl_preference.metric_descriptions import METRIC_DESCRIPTIONS

NUM_EXTREME = 5
NUM_RANDOM = 10
_MAX_CHARACTERS = 4000
_EMPTY = '<span class="cut">(empty)</span>'
# Control, format (bidirectional and invisible marks), surrogate, private, unassigned; line and paragraph separators.
_SHOWN_AS_CODE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --won: #2a9d5c; --lost: #d1495b; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { opacity: .7; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; } td.meaning { opacity: .75; }
tr:first-child td { font-weight: 600; }
article { border: 1px solid var(--line); border-radius: 8px; margin: 0 0 1rem; overflow: hidden; }
article header { padding: .4rem .8rem; background: var(--soft); font-variant-numeric: tabular-nums; }
.won { color: var(--won); font-weight: 600; } .lost { color: var(--lost); font-weight: 600; }
.pair { display: grid; grid-template-columns: 1fr 1fr; } .pair > div { padding: .6rem .8rem; min-width: 0; }
.pair > div + div { border-left: 1px solid var(--line); }
.label { font-size: .8rem; opacity: .7; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; overflow: hidden; unicode-bidi: isolate; direction: ltr; }
details { border-top: 1px solid var(--line); padding: .4rem .8rem; } summary { cursor: pointer; font-size: .85rem; }
.code { font: .75em ui-monospace, monospace; background: #f4a26155; border-radius: 3px; padding: 0 .2em; }
.cut { opacity: .6; font-style: italic; }
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
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            # The browser's word that nothing is loaded or run, whatever stands in a text.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Summaries and their scores</title><style>{_STYLE}</style></head><body>",
            f"<h1>Summaries on {result.num_prompts} held-out documents</h1>",
            _facts(facts),
            "<h2>Metrics</h2>",
            _metrics(result),
            *(f"<h2>{title}</h2>\n" + "\n".join(map(_card, items)) for title, items in sections if items),
            "</body></html>\n",
        ]
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


def visible(text: str) -> str:
    """Text as HTML that shows what is there: markup escaped, invisible characters as their code, cut when very long."""
    shown = "".join(map(_visible_character, text[:_MAX_CHARACTERS]))
    num_left_out = len(text) - _MAX_CHARACTERS
    return shown if num_left_out <= 0 else f'{shown}<span class="cut"> ... and {num_left_out} more characters</span>'


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _SHOWN_AS_CODE:
        return html.escape(character)
    return f'<span class="code">U+{ord(character):04X}</span>'


def _rank(item: JudgedSummary) -> float:
    return item.reward if item.gold_margin is None else item.gold_margin


def _facts(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{visible(k)}</dt><dd>{visible(v)}</dd>" for k, v in facts.items()) + "</dl>"


def _metrics(result: EvaluationResult) -> str:
    rows = []
    for name, value in result.metrics.items():
        interval = result.intervals.get(name)
        bounds = "" if interval is None else f"{interval[0]:.4f} .. {interval[1]:.4f}"
        rows.append(
            f'<tr><td>{visible(name)}</td><td class="number">{value:.4f}</td><td class="number">{bounds}</td>'
            f'<td class="meaning">{visible(METRIC_DESCRIPTIONS.get(name, ""))}</td></tr>'
        )
    head = "<thead><tr><th>metric</th><th>value</th><th>95 % interval</th><th>meaning</th></tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


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
        f'{item.reward:.3f}</div><div class="text">{visible(completion.text) or _EMPTY}</div></div></div>'
        f'<details><summary>prompt</summary><div class="text">{visible(item.prompt.text)}</div></details></article>'
    )

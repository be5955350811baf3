"""Parts of the page of an evaluation. One file that loads nothing and runs nothing, whatever stands in a text."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from tbactl.types import EvaluationResult

EMPTY = '<span class="cut">(empty)</span>'
_MAX_CHARACTERS = 4000
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
th.number { text-align: right; } tr:first-child td { font-weight: 600; }
article { border: 1px solid var(--line); border-radius: 8px; margin: 0 0 1rem; overflow: hidden; }
article header { padding: .4rem .8rem; background: var(--soft); font-variant-numeric: tabular-nums; }
.won { color: var(--won); font-weight: 600; } .lost { color: var(--lost); font-weight: 600; }
.label { font-size: .8rem; opacity: .7; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; overflow: hidden; unicode-bidi: isolate; direction: ltr; }
details { border-top: 1px solid var(--line); padding: .4rem .8rem; } summary { cursor: pointer; font-size: .85rem; }
.code { font: .75em ui-monospace, monospace; background: #f4a26155; border-radius: 3px; padding: 0 .2em; }
.cut { opacity: .6; font-style: italic; }
"""


def html_page(title: str, *, heading: str, parts: Sequence[str], style: str = "") -> str:
    """The whole page.

    Args:
        title: HTML of the window's title.
        heading: HTML of the first line.
        parts: HTML, one below the other.
        style: CSS besides the common one.
    """
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            # The browser's word that nothing is loaded or run, whatever stands in a text.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{title}</title><style>{_STYLE}{style}</style></head><body>",
            f"<h1>{heading}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def visible(text: str) -> str:
    """Text as HTML that shows what is there: markup escaped, invisible characters as their code, cut when very long."""
    shown = "".join(map(_visible_character, text[:_MAX_CHARACTERS]))
    num_left_out = len(text) - _MAX_CHARACTERS
    return shown if num_left_out <= 0 else f'{shown}<span class="cut"> ... and {num_left_out} more characters</span>'


def facts_list(facts: Mapping[str, str]) -> str:
    """Names and what they stand for, as a list."""
    return "<dl>" + "".join(f"<dt>{visible(k)}</dt><dd>{visible(v)}</dd>" for k, v in facts.items()) + "</dl>"


def metrics_table(result: EvaluationResult, *, names: Iterable[str], descriptions: Mapping[str, str]) -> str:
    """Metrics with their 95 % intervals and meanings, one a row.

    Args:
        result: of an evaluation.
        names: of the metrics that are shown, in this order; those that were not measured are left out.
        descriptions: meanings by name.
    """
    rows = [
        f'<tr><td>{visible(name)}</td>{metric_cells(result, name)}<td class="meaning">'
        f"{visible(descriptions.get(name, ''))}</td></tr>"
        for name in names
        if name in result.metrics
    ]
    columns = '<th>metric</th><th class="number">value</th><th class="number">95 % interval</th><th>meaning</th>'
    return f"<table><thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def metric_cells(result: EvaluationResult, name: str) -> str:
    """Two cells: value and interval of a metric; empty where it was not measured."""
    value, interval = result.metrics.get(name), result.intervals.get(name)
    shown = "" if value is None else _number(value)
    bounds = "" if interval is None else f"{_number(interval[0])} .. {_number(interval[1])}"
    return f'<td class="number">{shown}</td><td class="number">{bounds}</td>'


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _SHOWN_AS_CODE:
        return html.escape(character)
    return f'<span class="code">U+{ord(character):04X}</span>'

"""The page of an evaluation: metrics by both judges, and attacks with their answers. It loads and runs nothing."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from tbactl.evaluation.html import EMPTY, facts_list, html_page, metric_cells, metrics_table, visible
from tbactl.types import EvaluationResult
from tbactl_redteam.attacks import JudgedAttack
from tbactl_redteam.measures import PREFIXES, SUCCESS, mean_toxicity
from tbactl_redteam.metric_descriptions import ATTACK_METRICS, CLASSIFIER_METRICS

NUM_CLUSTERS = 10
NUM_DISAGREEMENTS = 5
NUM_RANDOM = 10
# Smaller differences between two classifiers' mean toxicities are no disagreement.
_DISAGREEMENT = 0.3
_STYLE = """
article > .text { padding: .6rem .8rem; font-weight: 600; }
table.answers td { padding: .25rem .8rem; } table.answers { border-top: 1px solid var(--line); table-layout: fixed; }
table.answers tr:last-child td { border-bottom: 0; } table.answers td { font-weight: 400; }
table.answers .number { width: 6.5em; text-align: left; overflow: hidden; text-overflow: ellipsis; }
tr.head td { font-size: .8rem; opacity: .7; }
.toxic { color: var(--lost); font-weight: 600; } th.group { border-bottom: 0; padding-bottom: 0; text-align: right; }
"""


def html_report(judged: Sequence[JudgedAttack], *, result: EvaluationResult, facts: Mapping[str, str]) -> str:
    """The whole page. Texts of models are escaped, characters without a visible form written as U+XXXX.

    Args:
        judged: all attacks; none is a page without any.
        result: the metrics.
        facts: what was measured, by name.
    """
    names = list(judged[0].toxicity) if judged else []
    sizes = Counter(item.cluster for item in judged)
    successes, disagreements, others = chosen_attacks(judged)
    sections = (
        ("Most toxic answers, one attack of each cluster", successes),
        ("Where the judges disagree most", disagreements),
        ("Random others", others),
    )
    return html_page(
        "Attacks and what they get",
        heading=f"{result.num_prompts} attacks on a victim",
        parts=[
            facts_list(facts),
            "<h2>By classifier</h2>",
            _classifier_table(result, names=names),
            "<h2>The attacks</h2>",
            metrics_table(result, names=ATTACK_METRICS, descriptions=ATTACK_METRICS),
            *(
                f"<h2>{title}</h2>\n" + "\n".join(_card(item, cluster_size=sizes[item.cluster]) for item in items)
                for title, items in sections
                if items
            ),
        ],
        style=_STYLE,
    )


def chosen_attacks(
    judged: Sequence[JudgedAttack],
) -> tuple[list[JudgedAttack], list[JudgedAttack], list[JudgedAttack]]:
    """The most toxic of each of the most toxic clusters, the widest disagreements of the judges, random others.

    None twice; toxic by the first classifier. Attacks without a score are among the others only.
    """
    names = list(judged[0].toxicity) if judged else []
    best: dict[int | None, JudgedAttack] = {}
    for item in _ranked(judged, names[:1]):
        best.setdefault(item.cluster, item)
    successes = list(best.values())[:NUM_CLUSTERS]
    taken = {id(item) for item in successes}
    wide = [item for item in _ranked(judged, names) if id(item) not in taken and _spread(item, names) >= _DISAGREEMENT]
    disagreements = sorted(wide, key=lambda item: _spread(item, names), reverse=True)[:NUM_DISAGREEMENTS]
    taken |= {id(item) for item in disagreements}
    others = [item for item in judged if id(item) not in taken]
    return successes, disagreements, random.Random(0).sample(others, min(NUM_RANDOM, len(others)))


def _ranked(judged: Sequence[JudgedAttack], names: Sequence[str]) -> list[JudgedAttack]:
    """Those that each of the classifiers scored, the most toxic by the first one at the beginning."""
    scored = [item for item in judged if all(mean_toxicity(item, name) is not None for name in names)]
    return sorted(scored, key=lambda item: mean_toxicity(item, names[0]) or 0.0, reverse=True)


def _spread(item: JudgedAttack, names: Sequence[str]) -> float:
    toxicities = [mean_toxicity(item, name) or 0.0 for name in names]
    return max(toxicities) - min(toxicities)


def _classifier_table(result: EvaluationResult, *, names: Sequence[str]) -> str:
    roles = ("trained against", "judge")
    groups = "".join(
        f'<th class="group" colspan="2">{visible(name)}<br><span class="label">{role}</span></th>'
        for name, role in zip(names, roles, strict=False)
    )
    columns = '<th class="number">value</th><th class="number">95 % interval</th>' * len(names)
    rows = [
        f"<tr><td>{visible(metric)}</td>"
        + "".join(metric_cells(result, prefix + metric) for prefix, _ in zip(PREFIXES, names, strict=False))
        + f'<td class="meaning">{visible(meaning)}</td></tr>'
        for metric, meaning in CLASSIFIER_METRICS.items()
    ]
    empty = '<th class="group"></th>'
    head = f"<tr>{empty}{groups}{empty}</tr><tr><th>metric</th>{columns}<th>meaning</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _card(item: JudgedAttack, *, cluster_size: int) -> str:
    toxicities = " &middot; ".join(f"{visible(name)} {_number(mean_toxicity(item, name))}" for name in item.toxicity)
    place = f"{cluster_size} attacks like it" if cluster_size > 1 else "no other like it"
    return (
        f"<article><header>{toxicities} &middot; {place}</header>"
        f'<div class="text">{visible(item.attack) or EMPTY}</div>{_answers(item)}'
        f"<details><summary>the attacker wrote {len(item.completion.token_ids)} tokens "
        f"({visible(item.completion.finish_reason)})</summary>"
        f'<div class="text">{visible(item.completion.text) or EMPTY}</div></details></article>'
    )


def _answers(item: JudgedAttack) -> str:
    if not item.answers:
        return '<table class="answers"><tr><td class="cut">no attack: the victim was not asked</td></tr></table>'
    scores = {name: iter(item.toxicity[name]) for name in item.toxicity}
    head = "".join(f'<td class="number">{visible(name)}</td>' for name in scores)
    rows = [f'<tr class="head">{head}<td>the victim answers</td></tr>']
    for answer in item.answers:
        if answer is None:
            cells, text = '<td class="number"></td>' * len(scores), '<span class="cut">(could not be had)</span>'
        else:
            cells = "".join(f'<td class="number">{_number(next(of_one))}</td>' for of_one in scores.values())
            text = visible(answer) or EMPTY
        rows.append(f'<tr>{cells}<td><div class="text">{text}</div></td></tr>')
    return f'<table class="answers">{"".join(rows)}</table>'


def _number(toxicity: float | None) -> str:
    if toxicity is None or not math.isfinite(toxicity):
        return '<span class="cut">unknown</span>'
    return f'<span class="toxic">{toxicity:.3f}</span>' if toxicity > SUCCESS else f"{toxicity:.3f}"

"""The report of an evaluation: what attacks and answers say stays text, whatever they say."""

from __future__ import annotations

import json
import math
import re

import pytest

from tbactl.errors import TaskError
from tbactl.types import EvaluationResult
from tbactl_redteam.attack_files import read_attacks
from tbactl_redteam.attacks import JudgedAttack
from tbactl_redteam.report import attack_row, write_report
from tbactl_redteam.report_html import chosen_attacks, html_report
from tests.support.html_pages import HOSTILE, Elements
from tests.support.redteam_stand_ins import completion

RESULT = EvaluationResult(
    task="redteam",
    policy_version=0,
    num_prompts=1,
    metrics={"success_rate": 0.5, "judge_success_rate": 0.125, "diversity": 0.75},
    intervals={"success_rate": (0.25, 0.75), "judge_success_rate": (0.0625, 0.5)},
)


def judged(attack, *, answers=("an answer",), toxicity=0.7, judge=0.2, cluster=0):
    there = [answer for answer in answers if answer is not None]
    return JudgedAttack(
        attack=attack,
        completion=completion(f" {attack}\n5."),
        answers=answers,
        toxicity={"profanity": (toxicity,) * len(there), "hate-minilm": (judge,) * len(there)},
        cluster=cluster,
    )


PLAIN_PAGE = Elements(
    html_report([judged("plain", answers=("one", None)), judged("", answers=())], result=RESULT, facts={"victim": "v"})
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_adds_no_element_no_attribute_and_no_invisible_character(name):
    text = HOSTILE[name]
    page = html_report([judged(text, answers=(text, None))] * 3, result=RESULT, facts={"victim": text, text: "x"})
    elements = Elements(page)
    assert elements.tags <= PLAIN_PAGE.tags | {"span"}
    assert elements.attributes <= PLAIN_PAGE.attributes
    assert elements.open == []
    assert all(character.isprintable() or character in "\n\t\u00a0" for character in "".join(elements.texts))
    page.encode("utf-8")


def test_hostile_classifier_name_is_escaped():
    item = JudgedAttack(attack="a", completion=completion("a"), answers=("b",), toxicity={"<script>\u202e": (0.5,)})
    page = html_report([item], result=RESULT, facts={})
    assert "<script>" not in page
    assert "\u202e" not in page


def test_page_loads_nothing():
    page = html_report([judged("x")] * 3, result=RESULT, facts={})
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script|<link", page)


def test_page_shows_both_judges_side_by_side_with_intervals():
    texts = "|".join(PLAIN_PAGE.texts)
    assert "profanity|trained against|hate-minilm|judge" in texts
    assert "success_rate|0.5000|0.2500 .. 0.7500|0.1250|0.0625 .. 0.5000|" in texts
    assert "diversity|0.7500|1 - mean cosine" in texts


def test_page_shows_each_answer_with_its_toxicities_and_what_is_missing():
    texts = "|".join(PLAIN_PAGE.texts)
    assert "|0.700|0.200|one|(could not be had)|" in texts
    assert "no attack: the victim was not asked" in texts


def test_page_of_no_attacks_is_a_page():
    elements = Elements(html_report([], result=RESULT, facts={}))
    assert elements.open == []


def test_most_toxic_attack_of_each_cluster_disagreements_and_random_ones_are_different():
    items = [judged(f"t{i}", toxicity=i / 100, judge=i / 100, cluster=i % 4) for i in range(40)]
    items += [judged(f"d{i}", toxicity=0.05, judge=0.9 - i / 100, cluster=9) for i in range(8)]
    successes, disagreements, others = chosen_attacks(items)
    assert [item.attack for item in successes] == ["t39", "t38", "t37", "t36", "d0"]
    assert [item.attack for item in disagreements] == ["d1", "d2", "d3", "d4", "d5"]
    assert len(others) == 10
    assert len({id(item) for item in (*successes, *disagreements, *others)}) == 20


def test_judges_that_agree_are_no_disagreement():
    assert chosen_attacks([judged(f"t{i}", toxicity=0.7, judge=0.5) for i in range(5)])[1] == []


def test_attack_whose_scores_failed_is_random_only_and_null_in_the_rows():
    item = judged("t", answers=("a", None, "b"), toxicity=math.nan)
    successes, disagreements, others = chosen_attacks([item])
    assert (successes, disagreements, others) == ([], [], [item])
    row = attack_row(item)
    assert row["mean_toxicity"] == {"profanity": None, "hate-minilm": 0.2}
    assert row["toxicity"] == {"profanity": [None, None, None], "hate-minilm": [0.2, None, 0.2]}
    assert row["answers"] == ["a", None, "b"]


def test_rows_are_ascii_json_that_gives_the_texts_back_and_are_attacks_to_try_elsewhere(tmp_path):
    items = [judged(text, answers=(text,)) for text in HOSTILE.values()]
    write_report(tmp_path / "new" / "out", judged=items, result=RESULT, facts={})
    path = tmp_path / "new" / "out" / "attacks.jsonl"
    rows = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert [(row["attack"], row["answers"]) for row in rows] == [(text, [text]) for text in HOSTILE.values()]
    assert read_attacks(str(path), option="data") == list(HOSTILE.values())
    assert (tmp_path / "new" / "out" / "report.html").is_file()


def test_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="cannot be written"):
        write_report(tmp_path / "file" / "out", judged=[], result=RESULT, facts={})

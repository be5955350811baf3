"""The report of an evaluation: what a completion says stays text, whatever it says."""

from __future__ import annotations

import json
import math
import re

import pytest

from tbactl.types import Completion, EvaluationResult, Prompt
from tbactl_preference.judging import JudgedSummary
from tbactl_preference.report import sample_row, write_report
from tbactl_preference.report_html import chosen_samples, html_report
from tests.support.html_pages import HOSTILE, Elements

RESULT = EvaluationResult(
    task="preference", policy_version=0, num_prompts=1, metrics={"win_rate": 0.5}, intervals={"win_rate": (0.25, 0.75)}
)


def judged(text, *, gold=2.0, human=1.0, reward=0.5, number=1):
    return JudgedSummary(
        prompt=Prompt(prompt_id=number, text="the prompt", facts={"document": "d", "summary": "the human one"}),
        completion=Completion(token_ids=(1,), logprobs=(0.0,), text=text, finish_reason="stop"),
        reward=reward,
        gold_reward=gold,
        human_gold_reward=human,
    )


PLAIN_PAGE = Elements(html_report([judged("plain")] * 3, result=RESULT, facts={"policy": "p"}))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_completion_adds_no_element_no_attribute_and_no_invisible_character(name):
    text = HOSTILE[name]
    page = html_report([judged(text)] * 3, result=RESULT, facts={"policy": text})
    elements = Elements(page)
    assert elements.tags <= PLAIN_PAGE.tags | {"span"}
    assert elements.attributes <= PLAIN_PAGE.attributes
    assert elements.open == []
    assert all(character.isprintable() or character in "\n\t\u00a0" for character in "".join(elements.texts))
    page.encode("utf-8")


def test_page_loads_nothing():
    page = html_report([judged("x")] * 3, result=RESULT, facts={})
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script|<link", page)


def test_page_shows_metrics_with_their_intervals():
    texts = "|".join(PLAIN_PAGE.texts)
    assert "win_rate|0.5000|0.2500 .. 0.7500" in texts


def test_best_worst_and_random_samples_are_different_ones():
    items = [judged(f"t{i}", gold=float(i), number=i) for i in range(30)]
    best, worst, others = chosen_samples(items)
    assert [item.gold_reward for item in best] == [29.0, 28.0, 27.0, 26.0, 25.0]
    assert [item.gold_reward for item in worst] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(others) == 10
    assert not {id(item) for item in others} & {id(item) for item in (*best, *worst)}


def test_few_samples_are_each_shown_once():
    items = [judged("only")]
    assert [len(group) for group in chosen_samples(items)] == [0, 0, 1]


def test_sample_whose_score_failed_is_no_extreme_and_null_in_the_rows():
    items = [judged(f"t{i}", gold=math.nan if i == 0 else float(i)) for i in range(5)]
    best, worst, _ = chosen_samples(items)
    assert items[0] not in best + worst
    assert sample_row(items[0])["gold_reward"] is None


def test_without_a_gold_model_samples_are_ranked_by_reward():
    items = [judged(f"t{i}", gold=None, human=None, reward=float(i)) for i in range(4)]
    best, worst, _ = chosen_samples(items)
    assert [item.reward for item in best + worst] == [3.0, 2.0, 0.0, 1.0]
    assert "Best, by reward" in html_report(items, result=RESULT, facts={})


def test_rows_are_ascii_json_that_gives_the_texts_back(tmp_path):
    items = [judged(text) for text in HOSTILE.values()]
    write_report(tmp_path / "new" / "out", judged=items, result=RESULT, facts={})
    rows = [json.loads(line) for line in (tmp_path / "new" / "out" / "samples.jsonl").read_text("ascii").splitlines()]
    assert [row["completion"] for row in rows] == list(HOSTILE.values())
    assert rows[0] | {"completion": "", "completion_words": 0} == {
        "prompt_id": 1,
        "prompt": "the prompt",
        "human_summary": "the human one",
        "completion": "",
        "reward": 0.5,
        "gold_reward": 2.0,
        "human_gold_reward": 1.0,
        "wins": True,
        "finish_reason": "stop",
        "completion_tokens": 1,
        "completion_words": 0,
        "human_words": 3,
        "origin": "",
    }

"""Text on the page of an evaluation is shown as what it is."""

from __future__ import annotations

from tbactl.evaluation.html import metrics_table, visible
from tbactl.types import EvaluationResult


def test_bidirectional_and_control_characters_are_written_as_codes():
    assert visible("a\u202eb\x00\ud800") == (
        'a<span class="code">U+202E</span>b<span class="code">U+0000</span><span class="code">U+D800</span>'
    )


def test_text_of_other_scripts_stays_as_it_is():
    assert visible("r\u00e9sum\u00e9 \u65e5\u672c \u05e9\u05dc\u05d5\u05dd\n<") == (
        "r\u00e9sum\u00e9 \u65e5\u672c \u05e9\u05dc\u05d5\u05dd\n&lt;"
    )


def test_enormous_text_is_cut_and_says_so():
    assert visible("x" * 5000).endswith('<span class="cut"> ... and 1000 more characters</span>')


def test_metrics_that_were_not_measured_have_no_row():
    result = EvaluationResult(task="t", policy_version=0, num_prompts=1, metrics={"a": 0.5, "b": 1.0})
    table = metrics_table(result, names=["b", "c"], descriptions={"b": "1 < 2"})
    assert table.count("<tr>") == 2
    assert '<td>b</td><td class="number">1.0000</td><td class="number"></td><td class="meaning">1 &lt; 2</td>' in table

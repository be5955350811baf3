from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl_math.answer import compare, find_answer, read_gold
from tbactl_math.latex import canonical, clean_latex, last_box

numbers = st.integers(-(10**6), 10**6)


def verdict(completion, gold):
    return compare(find_answer(completion), read_gold(gold))


@given(numbers, numbers)
def test_compare_stated_number_is_equal_only_to_itself(stated, gold):
    expected = "equal" if stated == gold else "different"
    for completion in (
        f"#### {stated}",
        f"\\boxed{{{stated:,}}}",
        f"The answer is {stated}.",
        f"so ${stated}$",
        f"{stated}",
    ):
        assert verdict(completion, str(gold)) == expected


@given(st.text(), numbers)
def test_find_answer_after_any_text_the_marker_decides(text, number):
    assert verdict(f"{text.replace('/answer', '').replace('<', '')}\n#### {number}", str(number)) == "equal"


@given(st.text(), st.text())
def test_compare_any_texts_give_a_verdict(completion, gold):
    assert verdict(completion, gold) in ("equal", "different", "undecided")


@given(st.text(alphabet="\\{}[]()$#0123456789.,+-*/^=<> abx", max_size=60))
def test_compare_any_formula_equals_itself_or_nothing(text):
    answer = find_answer(f"\\boxed{{{text}}}")
    assert compare(answer, answer) in ("equal", "different")


@pytest.mark.fault("R-05")
@given(st.text())
def test_compare_missing_answer_equals_nothing(gold):
    assert compare(None, read_gold(gold)) == "different"
    assert compare(find_answer(""), find_answer("")) == "different"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{a{b{c}}d}", "a{b{c}}d"),
        ("\\boxed{1} \\boxed{2", "1"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed {4}", "4"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{5} \\boxed{ }", "5"),
        ("} \\boxed{6}", "6"),
    ],
)
def test_last_box_is_the_last_closed_one_with_content(text, content):
    assert last_box(text)[1] == content


@pytest.mark.parametrize("text", ["", "\\boxed{}", "\\boxed{1", "\\boxed", "boxed{1}", "{1}"])
def test_last_box_none_is_found(text):
    assert last_box(text) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("\\dfrac12", "\\frac{1}{2}"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("x^{2}", "x^2"),
        ("\\sqrt2", "\\sqrt{2}"),
        ("10,\\!080", "10{,}080"),
        ("\\text{east}", "east"),
    ],
)
def test_canonical_notations_that_look_the_same_are_one(left, right):
    assert canonical(clean_latex(left)) == canonical(clean_latex(right))


@pytest.mark.fault("I-42")
@pytest.mark.parametrize(
    "piece",
    [
        "#### ", "\\boxed{", "{", "}", "the answer is ", "answer ", "1,", "1.", "1 ", "-", "$", "$1", "\\", "\\(", "**",
        "9^", "<<", "1/", "=", "\u00bd", "\u00b2", "\n\n", "a", "\\frac{1}", "(", "Problem:\n", "</think>", "e9", "1:",
    ],
)  # fmt: skip
def test_find_answer_long_repetition_takes_linear_time(piece):
    def seconds(length):
        start = time.process_time()
        compare(find_answer(piece * (length // len(piece)) + "1"), read_gold("1"))
        return time.process_time() - start

    seconds(10_000)
    # Quadratic work on a million characters would take minutes.
    assert seconds(1_000_000) < 60.0


@pytest.mark.parametrize("kind", ["equal", "different"])
def test_compare_calculation_counts_in_a_box_only(kind):
    completion = {"equal": "\\boxed{2^3}", "different": "#### 48 + 24"}[kind]
    assert verdict(completion, {"equal": "8", "different": "72"}[kind]) == kind
    assert verdict("\\boxed{48 + 24}", "72") == "undecided"

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl_math.numbers import (
    last_number,
    number_tokens,
    plain,
    read_number,
    read_number_words,
    read_repeating_decimal,
)


def values(text):
    return [token.quantity and token.quantity.value for token in number_tokens(plain(text))]


@pytest.mark.fault("I-44")
@given(st.integers())
def test_read_number_integer_is_exact_with_and_without_separators(number):
    for notation in (f"{number}", f"{number:,}", f"{number}.0"):
        token = read_number(notation)
        assert token and token.end == len(notation) and token.quantity.value == number


@pytest.mark.fault("I-44")
@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9))
def test_read_number_decimal_is_exact(number):
    token = read_number(f"{number:f}")
    assert token and token.quantity.value == Fraction(number)


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_read_number_fraction_is_exact_in_both_notations(top, bottom):
    for notation in (f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}"):
        token = read_number(notation)
        assert token and token.end == len(notation) and token.quantity.value == Fraction(top, bottom)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_number_tokens_minus_between_operands_is_no_sign(left, right):
    for text in (
        f"{left}-{right}",
        f"{left} - {right}",
        f"{left} -{right}",
        f"({left})-{right}",
        f"{left} \u2212 {right}",
    ):
        assert values(text) == [left, right]


@pytest.mark.fault("I-43")
@given(st.integers(1, 10**6))
def test_number_tokens_minus_after_word_or_equals_is_a_sign(number):
    for text in (
        f"is -{number}",
        f"x=-{number}",
        f"x = - {number}",
        f"(-{number})",
        f"loses -${number}",
        f"is \u2212{number}",
    ):
        assert values(text)[-1] == -number


@pytest.mark.parametrize(
    ("notation", "value"),
    [
        ("1.234.567", 1234567),
        ("1.234,5", Fraction(12345, 10)),
        ("12,34,567", 1234567),
        ("1'234", 1234),
        ("2 1/2", Fraction(5, 2)),
        ("1\\frac{4}{5}", Fraction(9, 5)),
        ("\\frac34", Fraction(3, 4)),
        ("1.5e3", 1500),
        ("2e-2", Fraction(1, 50)),
        ("2 \\times 10^{5}", 200000),
        ("2^{10}", 1024),
        ("2^3^2", 512),
        ("4**-1", Fraction(1, 4)),
        ("US$5", 5),
        ("$-5", -5),
        ("-$5", -5),
        ("2.5 million", 2500000),
        ("3 dozens", 36),
        ("20%", Fraction(1, 5)),
    ],
)
def test_read_number_notation_has_the_value(notation, value):
    token = read_number(plain(notation))
    assert token and token.end == len(notation) and token.quantity.value == value


@pytest.mark.parametrize("notation", ["3/0", "9**9**9**9", "1e999999999", "10^99999", "0^-1"])
def test_read_number_without_a_value_has_no_quantity(notation):
    token = read_number(notation)
    assert token and token.end == len(notation) and token.quantity is None


@pytest.mark.parametrize("text", ["H2O", "x^2", "cm^2", "a_1", "\\sqrt2", "1.2.3", "CO2e", "f(x)^{10}"])
def test_number_tokens_digits_of_names_and_exponents_are_no_numbers(text):
    assert values(text) == []


def test_number_tokens_time_has_no_quantity():
    assert values("at 3:30") == [None]


def test_last_number_is_found_at_the_end_of_a_long_text():
    notation, quantity = last_number("7 " * 100_000 + "then 1,234.5 in all" + " words" * 10_000)
    assert notation == "1,234.5" and quantity.value == Fraction(2469, 2)


@given(st.text())
def test_last_number_any_text_is_read_without_error(text):
    last_number(plain(text))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("twelve", 12),
        ("Twenty-five clips", 25),
        ("one hundred and five", 105),
        ("two thousand three", 2003),
        ("three million two hundred thousand", 3200000),
        ("zero", 0),
    ],
)
def test_read_number_words_have_the_value(words, value):
    assert read_number_words(words).value == value


@pytest.mark.parametrize("words", ["", "none", "and", "thousand", "a dozen", "someone"])
def test_read_number_words_other_words_are_no_number(words):
    assert read_number_words(words) is None


@given(st.integers(0, 999), st.integers(0, 99), st.integers(1, 999))
def test_read_repeating_decimal_is_the_limit_of_its_digits(whole, head, cycle):
    value = read_repeating_decimal(f"{whole}.{head:02}\\overline{{{cycle}}}").quantity.value
    written_out = Fraction(f"{whole}.{head:02}{str(cycle) * 40}")
    assert abs(value - written_out) < Fraction(1, 10**40)


@given(st.integers(1, 999))
def test_quantity_percent_equals_value_and_face_but_not_another_scale(number):
    percent, face, share = (read_number(text).quantity for text in (f"{number}%", f"{number}", f"{number}e-2"))
    assert percent.equals(face) and percent.equals(share) and face.equals(percent)
    assert not percent.equals(read_number(f"{number * 100}%").quantity)

"""From a piece of text that states an answer to the answer: a number, words, or an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tbactl_math.latex import clean_latex, is_words
from tbactl_math.numbers import (
    MAX_CHARACTERS,
    Quantity,
    join_groups,
    number_tokens,
    plain,
    read_number,
    read_number_words,
    read_repeating_decimal,
)

Source = Literal["####", "boxed", "phrase", "whole", "formula", "last number", "gold"]

_DELIMITED = re.compile(
    r"(?<!\\)\$\$?(?P<a>(?:[^$\n\\]|\\.){1,300})\$\$?|\\\((?P<b>.{1,300}?)\\\)|\\\[(?P<c>.{1,300}?)\\\]", re.DOTALL
)
SENTENCE_END = re.compile(r"[.!?](?=\s{1,3}[A-Z(])|\n")
_LEAD_IN = re.compile(
    r"(?:(?:about|approximately|approx\.?|around|roughly|exactly|only|just|simply|equal to|a total of|total of|total|"
    r"therefore|thus|so|then|that)\b|[~\u2248:,]|\\approx)\s{0,3}",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!\\:=])=(?![=>])|\u2248")
_IDENTIFIER = re.compile(r"(?:\\?[A-Za-z]+'?|[A-Za-z](?:_\{?\w{1,8}\}?|\(\w\)))")
_MEMBERSHIP = re.compile(r"\s?\\?[A-Za-z]\s?\\in(?![A-Za-z])\s?")
# A letter that stands alone; an x before a number is a multiplication sign.
_UNKNOWN = re.compile(r"(?<![A-Za-z\\])(?:[a-wyz]|x(?!\s?[\d$(.]))(?![A-Za-z])")
_SYMBOL = re.compile(r"\\(?!(?:frac|sqrt|times|cdot|div)(?![A-Za-z]))")
_SEVERAL = re.compile(r",(?!\d{3})|;|\b(?:or|and)\b")
LONG_WORD = re.compile(r"(?<![\\A-Za-z])(?<!begin\{)(?<!end\{)[A-Za-z]{3,}")
_DOLLARS_AND_CENTS = re.compile(r"\$?(\d{1,9}) dollars?,? and (\d{1,2}) cents?", re.IGNORECASE)

_UNITS_IN_FORMULA = re.compile(r"cm|[mk]m|[mk]g|ml|ft|in|mi|yd|hrs?|min|sec|lbs?|oz|mph|rpm|[ap]m|st|nd|rd|th")
_REMARK = re.compile(r"\s\([^()]{0,200}\)?")
_OPERATOR_TAIL = re.compile(r"\s?(?:[+*^<>_{(\[|!\d]|\\|-\s?[\d(\\$]|-[A-Za-z]|/\s?[\d(\\$]|x\s?[\d(]|[/-]\s?$)")
_LIST_TAIL = re.compile(r"\s?(?:,|;|\band\b|\bor\b|\bto\b|-)\s{0,2}(?:and\b|or\b)?\s?[-+$]?[\d.\\]*\d")
_COMPOUND_TAIL = re.compile(
    r"\s?(?:[A-Za-z]{1,12},? and \d|(?:hours?|hrs?|minutes?|min|feet|foot|ft|pounds?|lbs?|years?|weeks?|days?),? \d)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found. `kind` says how it can be compared.

    number: `quantity` holds its value. unusable: a number without a value (3/0, 9**9**9), equal to nothing.
    words: text, compared letter by letter. expression: formulas, lists, unfinished calculations.
    """

    notation: str
    source: Source
    kind: Literal["number", "unusable", "words", "expression"]
    quantity: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula in a text: its place with the delimiters, and what stands between them."""

    start: int
    end: int
    content: str


def formulas(text: str) -> Iterator[Formula]:
    r"""What stands between `$...$`, `\(...\)` or `\[...\]`, unless it is prose ("$5 for lunch and $")."""
    for match in _DELIMITED.finditer(text):
        content = match["a"] or match["b"] or match["c"]
        if is_words(content) or not LONG_WORD.search(clean_latex(content)):
            yield Formula(match.start(), match.end(), content)


def read_text(segment: str, source: Source) -> Answer | None:
    """An answer in running text, like "$5 for each", "about 72 clips", "48 + 24 = 72"."""
    formula = next(formulas(segment.strip()), None)
    if formula and formula.start == 0:
        return read_formula(formula.content, source)
    if "\\" in segment.replace("\\$", "$"):
        return read_formula(segment, source)
    body = undressed(segment)
    end = SENTENCE_END.search(body)
    body = undressed(body[: end.start()]) if end else body
    if not body:
        return None
    return _read_number_in_text(_right_hand_side(body), source) or _read_other(body, source)


def _read_number_in_text(body: str, source: Source) -> Answer | None:
    coins = _DOLLARS_AND_CENTS.match(body)
    if coins:
        token = read_number(f"{coins[1]}.{coins[2]:0>2}")
        return from_number(coins[0], source, token.quantity if token else None)
    for _ in range(3):
        body = body[1:-1] if _is_wrapped(body) else body
        token = read_number(body)
        if token:
            is_plain = _is_unit(body[token.end :], in_formula=False)
            return from_number(body[: token.end], source, token.quantity) if is_plain else None
        shorter = _LEAD_IN.sub("", body, count=1) if _LEAD_IN.match(body) else body
        if shorter == body:
            break
        body = shorter
    if not any(c.isdigit() for c in body):
        quantity = read_number_words(body)
        return from_number(body, source, quantity) if quantity else None
    if not LONG_WORD.search(body):
        return None
    tokens = list(number_tokens(body))
    return from_number(body[tokens[-1].start : tokens[-1].end], source, tokens[-1].quantity) if tokens else None


def read_formula(formula: str, source: Source) -> Answer | None:
    r"""An answer in LaTeX, like "\frac{3}{4}", "x = 5", "72 \text{ clips}"."""
    body = join_groups(clean_latex(formula[:MAX_CHARACTERS])).strip("*_`\"' ")
    if not body:
        return None
    if is_words(formula):
        return Answer(body, source, "words")
    body = _right_hand_side(_MEMBERSHIP.sub("", body, count=1) if _MEMBERSHIP.match(body) else body)
    inner = body[1:-1] if _is_wrapped(body) and "," not in body else body
    token = read_repeating_decimal(inner) or read_number(inner)
    if token and _is_unit(inner[token.end :], in_formula=True):
        return from_number(inner[: token.end], source, token.quantity)
    return _read_other(body, source)


def _read_other(body: str, source: Source) -> Answer:
    is_clock = re.fullmatch(r"\d{1,9}(?::\d{1,9})+(?:\s?[ap]\.?m)?", body, re.IGNORECASE) is not None
    is_words = is_clock or (not re.search(r"[\d\\^_=+<>{]", body) and (LONG_WORD.search(body) is not None))
    return Answer(body, source, "words" if is_words else "expression")


def from_number(notation: str, source: Source, quantity: Quantity | None) -> Answer:
    """The answer that a number token states; a time like "3:30" is compared as words."""
    kind = "number" if quantity else "words" if ":" in notation else "unusable"
    return Answer(notation.strip(), source, kind, quantity)


def undressed(segment: str) -> str:
    """`segment` without the Markdown, quotation marks and punctuation around it."""
    text = (
        join_groups(plain(segment[:MAX_CHARACTERS])).replace("\\$", "$").strip(" \t*_`\"'\u201c\u201d\u2018:=>\u00b0")
    )
    return text.rstrip(".,;!? ").rstrip("*_`\"'\u201c\u201d ").rstrip(".,;!? ")


def _right_hand_side(body: str) -> str:
    """What a chain of equations ends in, unless it is an equation in unknowns that is itself the answer."""
    parts = [part.strip() for part in _EQUALS.split(body)]
    if len(parts) == 1:
        return body
    left, right = " = ".join(parts[:-1]), parts[-1]
    if not right or (_IDENTIFIER.fullmatch(right) and len(right) <= 2 and read_number(left)):
        return left
    if _IDENTIFIER.fullmatch(left):
        return right
    is_about_unknowns = (_UNKNOWN.search(left) or _SEVERAL.search(left)) and not LONG_WORD.search(left)
    return body if is_about_unknowns or _SYMBOL.search(left) else right


def _is_unit(tail: str, *, in_formula: bool) -> bool:
    """Whether a number is the whole answer despite what follows: a unit or prose; no operator, variable or list."""
    tail = tail.rstrip(" .,;:!?)" if not in_formula else " .,;:")
    if not tail:
        return True
    if in_formula:
        word = tail.strip()
        return (
            _UNITS_IN_FORMULA.fullmatch(word) is not None
            or re.fullmatch(r"\s[A-Za-z]{3,}(?:[ /][A-Za-z]{2,}){0,8}", tail) is not None
        )
    if re.match(r"[A-Za-z](?![A-Za-z])", tail) and tail[0] not in "mgshlLdC":
        return False
    tail = _REMARK.sub("", tail)
    return not (_OPERATOR_TAIL.match(tail) or _LIST_TAIL.match(tail) or _COMPOUND_TAIL.match(tail))


def _is_wrapped(body: str) -> bool:
    return body[:1] + body[-1:] in ("()", "[]", "{}", "<>") and not set(body[1:-1]) & set("()[]{}<>")

"""The final answer of a completion, and whether it equals the expected one: exact, pure Python, bounded time.

Where the answer is looked for, in this order:

1. after the last `####` or in the last `\\boxed{...}`, whichever comes later (a Markdown heading is no answer);
2. after the last "answer is", "answer:" or "answer =";
3. the whole completion, when it is nothing but an expression;
4. the last formula between `$...$`, `\\(...\\)` or `\\[...\\]`, when no number follows it;
5. the last number.

Later statements win, so hedging with several answers gains nothing. What follows an end-of-text token, or the header of
another problem after an answer was given, is not read.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

from tbactl_math.latex import canonical, clean_latex, is_words, last_box
from tbactl_math.numbers import (
    MAX_CHARACTERS,
    NumberToken,
    Quantity,
    join_groups,
    last_number,
    number_tokens,
    plain,
    read_number,
    read_number_words,
)

Verdict = Literal["equal", "different", "undecided"]
Source = Literal["####", "boxed", "phrase", "whole", "formula", "last number", "gold"]
# Statements of an answer that are looked at, counted from the end.
_MAX_STATEMENTS = 8

_END_OF_TEXT = re.compile(r"</s>|<\|(?:endoftext|im_end|eot_id|end_of_text)\|>")
_NEXT_PROBLEM = re.compile(r"\n[ \t]{0,8}(?:\[MATH[ _]TASK\]|(?:Question|Problem|Q)[ \d]{0,4}:)")
_STATEMENT = re.compile(r"####|\\boxed|\banswer\b", re.IGNORECASE)
_HEADING = re.compile(
    r"(?:step|part|case|method|solution|explanation|question|problem|example|note|option|approach|check|verification|"
    r"conclusion|given|summary)\b",
    re.IGNORECASE,
)
_PHRASE = re.compile(
    r"\b(?:answer|ans)\b(?P<between>[^\n:=.]{0,60}?)(?P<link>\b(?:is|are|be|equals)\b|:|=)", re.IGNORECASE
)
_ANSWER_LABEL = re.compile(r"(?:the\s)?(?:final\s|correct\s)?answer\b\s?(?:is\b|:|=)?[\s:*]{0,4}", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$?(?P<a>[^$\n]{1,300})\$\$?|\\\((?P<b>.{1,300}?)\\\)|\\\[(?P<c>.{1,300}?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"[.!?](?=\s{1,3}[A-Z(])|\n")
_LEAD_IN = re.compile(
    r"(?:(?:about|approximately|approx\.?|around|roughly|exactly|only|just|simply|equal to|a total of|total of|total|"
    r"therefore|thus|so|then|that)\b|[~\u2248:,]|\\approx)\s{0,3}",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!\\:=])=(?![=>])|\u2248")
_IDENTIFIER = re.compile(r"(?:\\?[A-Za-z]+'?|[A-Za-z](?:_\{?\w{1,8}\}?|\(\w\)))")
_MEMBERSHIP = re.compile(r"\s?\\?[A-Za-z]\s?\\in(?![A-Za-z])\s?")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_DOLLARS_AND_CENTS = re.compile(r"\$?(\d{1,9}) dollars?,? and (\d{1,2}) cents?", re.IGNORECASE)
_CALCULATION = re.compile(r"(?:[\d\s.,+\-*/()x^{}$%]|\\times|\\cdot|\\div|\\frac|\\left|\\right)+")
_OPERATOR_INSIDE = re.compile(r"(?<=[\d)}\s])\s?(?:[-+*/x^]|\\times|\\cdot|\\div)")

_UNITS_IN_FORMULA = frozenset(
    "cm mm km kg mg ml ft in mi yd hr hrs min sec lb lbs oz mph rpm am pm st nd rd th".split()
)
_REMARK = re.compile(r"\s\([^()]{0,200}\)?")
_OPERATOR_TAIL = re.compile(r"\s?(?:[+*^<>_{(\[|!]|\\|-\s?[\d(\\$]|-[A-Za-z]|/\s?[\d(\\$]|x\s?[\d(]|[/-]\s?$)")
_LIST_TAIL = re.compile(r"\s?(?:,|;|\band\b|\bor\b|\bto\b|-)\s{0,2}(?:and\b|or\b)?\s?[-+$]?[\d.\\]*\d")
_COMPOUND_TAIL = re.compile(
    r"\s?(?:[A-Za-z]{1,12},? and \d|(?:hours?|hrs?|minutes?|min|feet|foot|ft|pounds?|lbs?|years?|weeks?|days?),? \d)"
)
_BASE = re.compile(r"\d_\{?\d")


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


def find_answer(completion: str) -> Answer | None:
    """The final answer that a completion states, or None when it states none."""
    text = _own_part(completion)
    return _marked_answer(text) or _phrase_answer(text) or _bare_answer(text)


def read_gold(gold: str) -> Answer | None:
    """The expected answer: a plain value, or a solution that ends with `#### value` or holds `\\boxed{value}`."""
    marked = _marked_answer(gold)
    if marked:
        return marked
    if len(gold) > MAX_CHARACTERS or not gold.strip():
        return None
    return _read_formula(gold, "gold") if "\\" in gold or not _LONG_WORD.search(gold) else _read_text(gold, "gold")


def compare(answer: Answer | None, gold: Answer | None) -> Verdict:
    """Whether the two are equal; "undecided" leaves it to symbolic algebra. An answer that is not there equals nothing."""
    if answer is None or gold is None or "unusable" in (answer.kind, gold.kind):
        return "different"
    if answer.quantity and gold.quantity:
        return "equal" if answer.quantity.equals(gold.quantity) else "different"
    if "words" in (answer.kind, gold.kind):
        return "equal" if _folded(answer.notation) == _folded(gold.notation) else "different"
    if canonical(answer.notation) == canonical(gold.notation):
        return "equal"
    if gold.quantity and _is_no_number(answer):
        return "different"
    if _BASE.search(answer.notation) or _BASE.search(gold.notation):
        return "different"
    return _compare_lists(answer.notation, gold.notation)


def _own_part(completion: str) -> str:
    text = completion.rpartition("</think>")[2]
    end = _END_OF_TEXT.search(text)
    text = text[: end.start()] if end and text[: end.start()].strip() else text
    stated = _STATEMENT.search(text)
    following = _NEXT_PROBLEM.search(text, stated.end()) if stated else None
    return text[: following.start()] if following else text


def _marked_answer(text: str) -> Answer | None:
    box, position = last_box(text), len(text)
    for _ in range(_MAX_STATEMENTS):
        position = text.rfind("####", 0, position)
        if position < (box[0] if box else 0):
            break
        answer = _after_hashes(text[position : position + 2 * MAX_CHARACTERS])
        if answer:
            return answer
    if box and len(box[1]) <= MAX_CHARACTERS:
        return _read_formula(box[1], "boxed")
    return None


def _after_hashes(text: str) -> Answer | None:
    segment, _, after = text.lstrip("#").partition("\n")
    segment = _ANSWER_LABEL.sub("", segment.strip(" \t*_"), count=1).strip()
    if not segment.strip("*_ "):
        segment = next((line for line in after.splitlines()[:3] if line.strip()), "")
    return None if _HEADING.match(segment.lstrip("#* ")) else _read_text(segment, "####")


def _phrase_answer(text: str) -> Answer | None:
    for match in reversed(deque(_PHRASE.finditer(text), maxlen=_MAX_STATEMENTS)):
        rest = text[match.end() : match.end() + MAX_CHARACTERS].lstrip(" \t*:=\n")
        end = _SENTENCE_END.search(rest)
        segment, after = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
        answer = _read_text(segment, "phrase")
        # "Answer:" may also head a worked solution, and "the answer is" a sentence that does not say which.
        is_header = match["link"] in ":=" and any(c.isdigit() for c in after) and not read_number(_undressed(segment))
        is_header = is_header or (match["link"] in ":=" and "=" in segment and any(c.isdigit() for c in after))
        is_vague = answer is not None and answer.kind == "words" and len(segment.split()) > 3
        if answer and not is_header and not is_vague:
            return answer
    return None


def _bare_answer(text: str) -> Answer | None:
    whole = text.strip()
    is_expression = "\n" not in whole and not _LONG_WORD.search(whole) and not _STATEMENT.search(whole)
    if 0 < len(whole) <= MAX_CHARACTERS and is_expression:
        return _read_formula(whole, "whole") if "\\" in whole else _read_text(whole, "whole")
    tail = text[-2 * MAX_CHARACTERS :]
    formula = next(iter(deque(_FORMULA.finditer(tail), maxlen=1)), None)
    if formula and not any(c.isdigit() for c in tail[formula.end() :]):
        inner = formula["a"] or formula["b"] or formula["c"]
        if not _LONG_WORD.search(clean_latex(inner)):
            return _read_formula(inner, "formula")
    found = last_number(plain(text))
    return _from_number(found[0], "last number", found[1]) if found else None


def _read_text(segment: str, source: Source) -> Answer | None:
    """An answer in running text, like "$5 for each", "about 72 clips", "48 + 24 = 72"."""
    formula = _FORMULA.match(segment.strip())
    if formula and not _LONG_WORD.search(formula["a"] or ""):
        return _read_formula(formula["a"] or formula["b"] or formula["c"], source)
    if "\\" in segment.replace("\\$", "$"):
        return _read_formula(segment, source)
    body = _undressed(segment)
    end = _SENTENCE_END.search(body)
    body = _undressed(body[: end.start()]) if end else body
    if not body:
        return None
    return _read_number_in_text(_right_hand_side(body), source) or _read_other(body, source)


def _read_number_in_text(body: str, source: Source) -> Answer | None:
    coins = _DOLLARS_AND_CENTS.match(body)
    if coins:
        token = read_number(f"{coins[1]}.{coins[2]:0>2}")
        return _from_number(coins[0], source, token.quantity if token else None)
    for _ in range(3):
        body = body.removeprefix("(") if body.count("(") > body.count(")") or _is_wrapped(body) else body
        token = read_number(body)
        if token:
            is_plain = _is_unit(body[token.end :].removesuffix(")"), in_formula=False)
            return _from_number(body[: token.end], source, token.quantity) if is_plain else None
        shorter = _LEAD_IN.sub("", body, count=1) if _LEAD_IN.match(body) else body
        if shorter == body:
            break
        body = shorter
    if not any(c.isdigit() for c in body):
        quantity = read_number_words(body)
        return _from_number(body, source, quantity) if quantity else None
    if not _LONG_WORD.search(body):
        return None
    tokens: list[NumberToken] = list(number_tokens(body))
    return _from_number(body[tokens[-1].start : tokens[-1].end], source, tokens[-1].quantity) if tokens else None


def _read_formula(formula: str, source: Source) -> Answer | None:
    """An answer in LaTeX, like "\\frac{3}{4}", "x = 5", "72 \\text{ clips}"."""
    body = join_groups(clean_latex(formula[:MAX_CHARACTERS])).strip("*_`\"' ")
    if not body:
        return None
    if is_words(formula):
        return Answer(body, source, "words")
    body = _right_hand_side(_MEMBERSHIP.sub("", body, count=1) if _MEMBERSHIP.match(body) else body)
    inner = body[1:-1] if _is_wrapped(body) and "," not in body else body
    token = read_number(inner)
    if token and _is_unit(inner[token.end :], in_formula=True):
        return _from_number(inner[: token.end], source, token.quantity)
    return _read_other(body, source)


def _read_other(body: str, source: Source) -> Answer:
    is_clock = re.fullmatch(r"\d{1,9}(?::\d{1,9})+(?:\s?[ap]\.?m)?", body, re.IGNORECASE) is not None
    is_words = is_clock or (not re.search(r"[\d\\^_=+<>{]", body) and (_LONG_WORD.search(body) is not None))
    return Answer(body, source, "words" if is_words else "expression")


def _from_number(notation: str, source: Source, quantity: Quantity | None) -> Answer:
    kind = "number" if quantity else "words" if ":" in notation else "unusable"
    return Answer(notation.strip(), source, kind, quantity)


def _undressed(segment: str) -> str:
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
    is_name = _IDENTIFIER.fullmatch(left) is not None
    has_unknowns = re.search(r"(?<![A-Za-z\\])[a-wyz](?![A-Za-z])", left) is not None and not _LONG_WORD.search(left)
    return (
        right if is_name or not has_unknowns and "\\" not in left.replace("\\frac", "").replace("\\times", "") else body
    )


def _is_unit(tail: str, *, in_formula: bool) -> bool:
    """Whether what follows a number leaves it the whole answer: a unit, a remark, prose; not an operator, variable, list."""
    tail = tail.rstrip(" .,;:!?)" if not in_formula else " .,;:")
    if not tail:
        return True
    if in_formula:
        word = tail.strip()
        return word in _UNITS_IN_FORMULA or re.fullmatch(r"\s[A-Za-z]{3,}(?:[ /][A-Za-z]{2,}){0,8}", tail) is not None
    if re.match(r"[A-Za-z](?![A-Za-z])", tail) and tail[0] not in "mgshlLdC":
        return False
    tail = _REMARK.sub("", tail)
    return not (_OPERATOR_TAIL.match(tail) or _LIST_TAIL.match(tail) or _COMPOUND_TAIL.match(tail))


def _is_wrapped(body: str) -> bool:
    return len(body) > 2 and body[0] == "(" and body[-1] == ")" and "(" not in body[1:] and ")" not in body[:-1]


def _is_no_number(answer: Answer) -> bool:
    """Whether an expression cannot stand for a plain number: a list, a range, or a sum that was not worked out.

    A box may hold what algebra can still simplify (the convention of MATH); elsewhere working it out is the task.
    """
    if answer.source == "boxed":
        return _is_list(answer.notation)
    is_calculation = _CALCULATION.fullmatch(answer.notation) and _OPERATOR_INSIDE.search(answer.notation)
    return "\\" not in answer.notation or bool(is_calculation) or _is_list(answer.notation)


def _folded(notation: str) -> str:
    words = re.sub(r"[^\w:+-]+", " ", notation.casefold()).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("the", "a", "an") else words)


def _is_list(notation: str) -> bool:
    return len(_elements(notation)[1]) > 1


def _elements(notation: str) -> tuple[str, list[str]]:
    """Brackets ("" for none) and the comma-separated elements outside of inner brackets."""
    body = notation.replace("\\{", "{").replace("\\}", "}").strip()
    brackets = ""
    if len(body) > 1 and body[0] in "([{" and body[-1] in ")]}" and not set(body[1:-1]) & set("()[]{}"):
        brackets, body = body[0] + body[-1], body[1:-1]
    parts, depth, start = [], 0, 0
    for position, character in enumerate(body):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            parts.append(body[start:position])
            start = position + 1
    parts.append(body[start:])
    return brackets, re.split(r"\s(?:and|or)\s", body) if len(parts) == 1 else parts


def _compare_lists(answer: str, gold: str) -> Verdict:
    """Decides lists of plain numbers: order counts only inside round or square brackets."""
    answer_brackets, answer_parts = _elements(answer)
    gold_brackets, gold_parts = _elements(gold)
    if len(answer_parts) < 2 and len(gold_parts) < 2:
        return "undecided"
    values = [[_element_value(part) for part in parts] for parts in (answer_parts, gold_parts)]
    if any(value is None for side in values for value in side):
        return "undecided"
    brackets = {answer_brackets, gold_brackets} - {""}
    if len(brackets) > 1:
        return "different"
    if not brackets or brackets == {"{}"}:
        values = [sorted(side, key=lambda value: value.value if value else 0) for side in values]
    left, right = values
    same = len(left) == len(right) and all(a and b and a.equals(b) for a, b in zip(left, right, strict=True))
    return "equal" if same else "different"


def _element_value(part: str) -> Quantity | None:
    answer = _read_formula(part, "whole")
    return answer.quantity if answer else None

r"""The final answer of a completion, and whether it equals the expected one: exact, pure Python, bounded time.

Where the answer is looked for, in this order:

1. after the last `####` or in the last `\boxed{...}`, whichever comes later (a Markdown heading is no answer);
2. after the last "answer is", "answer:" or "answer =";
3. the last formula between `$...$`, `\(...\)` or `\[...\]`, when no number follows it;
4. the whole completion, when it is nothing but an expression;
5. the last number.

Later statements win, so hedging with several answers gains nothing. What follows an end-of-text token, or the header of
another problem after an answer was given, is not read.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Literal

from tbactl_math.latex import canonical, last_box
from tbactl_math.numbers import MAX_CHARACTERS, Quantity, last_number, plain, read_number
from tbactl_math.reading import (
    LONG_WORD,
    SENTENCE_END,
    Answer,
    formulas,
    from_number,
    read_formula,
    read_text,
    undressed,
)

Verdict = Literal["equal", "different", "undecided"]
# Statements of an answer that are looked at, counted from the end.
_MAX_STATEMENTS = 8

_END_OF_TEXT = re.compile(r"</s>|</answer>|<\|(?:endoftext|im_end|eot_id|end_of_text)\|>")
_NEXT_PROBLEM = re.compile(r"\n[ \t]{0,8}(?:\[MATH[ _]TASK\]|(?:Question|Problem|Q)[ \d]{0,4}:)")
# GSM8K's solutions carry "<<48/2=24>>" before each result.
_CALCULATOR_NOTE = re.compile(r"<<[^<>\n]{0,100}>>")
# A line break that was escaped once too often; \\ne, \\nu and the like are LaTeX.
_ESCAPED_LINE_BREAK = re.compile(r"(?<!\\)\\n(?![A-Za-z])")
_STATEMENT = re.compile(r"####|\\boxed|\banswer\b", re.IGNORECASE)
_HEADING = re.compile(
    r"(?:step|part|case|method|solution|explanation|question|problem|example|note|option|approach|check|verification|"
    r"conclusion|given|summary)\b",
    re.IGNORECASE,
)
_PHRASE = re.compile(
    r"(?<!/)\b(?:answer|ans)\b(?:[^\n:=.]{0,60}?\b(?:is|are|be|equals)\b|(?P<label>[^\n:=.]{0,30}?:|[\s*]{0,4}=))",
    re.IGNORECASE,
)
_ANSWER_LABEL = re.compile(r"(?:the\s)?(?:final\s|correct\s)?answer\b\s?(?:is\b|:|=)?[\s:*]{0,4}", re.IGNORECASE)
_CALCULATION = re.compile(r"(?:[\d\s.,+\-*/()x^{}$%]|\\times|\\cdot|\\div|\\frac|\\left|\\right)+")
_OPERATOR_INSIDE = re.compile(r"(?<=[\d)}\s])\s?(?:[-+*/x^]|\\times|\\cdot|\\div)")

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_BASE = re.compile(r"\d_\{?\d")


def find_answer(completion: str) -> Answer | None:
    """The final answer that a completion states, or None when it states none."""
    text = _own_part(completion)
    return _marked_answer(text) or _phrase_answer(text) or _bare_answer(text)


def read_gold(gold: str) -> Answer | None:
    r"""The expected answer: a plain value, or a solution that ends with `#### value` or holds `\boxed{value}`."""
    marked = _marked_answer(gold)
    if marked:
        return marked
    if len(gold) > MAX_CHARACTERS or not gold.strip():
        return None
    return read_formula(gold, "gold") if "\\" in gold or not LONG_WORD.search(gold) else read_text(gold, "gold")


def compare(answer: Answer | None, gold: Answer | None) -> Verdict:
    """Whether the two are equal; "undecided" leaves it to symbolic algebra. No answer equals nothing."""
    if answer is None or gold is None or "unusable" in (answer.kind, gold.kind):
        return "different"
    if answer.quantity and gold.quantity:
        return "equal" if answer.quantity.equals(gold.quantity) else "different"
    if "words" in (answer.kind, gold.kind):
        return "equal" if _folded(answer.notation) == _folded(gold.notation) else "different"
    if canonical(answer.notation) == canonical(gold.notation):
        return "equal"
    if gold.quantity and ("=" in answer.notation or _is_no_number(answer)):
        return "different"
    if _BASE.search(answer.notation) or _BASE.search(gold.notation):
        return "different"
    return _compare_lists(answer.notation, gold.notation)


def _own_part(completion: str) -> str:
    text = _CALCULATOR_NOTE.sub("", _ESCAPED_LINE_BREAK.sub("\n", completion.rpartition("</think>")[2]))
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
        return read_formula(box[1], "boxed")
    return None


def _after_hashes(text: str) -> Answer | None:
    segment, _, after = text.lstrip("#").partition("\n")
    segment = _ANSWER_LABEL.sub("", segment.strip(" \t*_"), count=1).strip()
    if not segment.strip("*_ "):
        segment = next((line for line in after.splitlines()[:3] if line.strip()), "")
    return None if _HEADING.match(segment.lstrip("#* ")) else read_text(segment, "####")


def _phrase_answer(text: str) -> Answer | None:
    for match in reversed(deque(_PHRASE.finditer(text), maxlen=_MAX_STATEMENTS)):
        rest = text[match.end() : match.end() + MAX_CHARACTERS].lstrip(" \t*:=\n")
        end = SENTENCE_END.search(rest)
        segment, after = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
        answer = read_text(segment, "phrase")
        # "Answer:" may also head a worked solution, and "the answer is" begin a sentence that does not say which.
        is_prose = "=" in segment or not read_number(undressed(segment))
        is_header = match["label"] is not None and is_prose and any(c.isdigit() for c in after)
        is_vague = answer is not None and answer.kind == "words" and len(segment.split()) > 3
        if answer and not is_header and not is_vague:
            return answer
    return None


def _bare_answer(text: str) -> Answer | None:
    whole = text.strip()
    tail = whole[-2 * MAX_CHARACTERS :]
    formula = next(iter(deque(formulas(tail), maxlen=1)), None)
    if formula and not any(c.isdigit() for c in tail[formula.end :]):
        return read_formula(formula.content, "formula")
    is_expression = "\n" not in whole and not _WORD.search(whole) and not _STATEMENT.search(whole)
    if 0 < len(whole) <= MAX_CHARACTERS and is_expression:
        return read_formula(whole, "whole") if "\\" in whole else read_text(whole, "whole")
    found = last_number(plain(text))
    return from_number(found[0], "last number", found[1]) if found else None


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
    answer = read_formula(part, "whole")
    return answer.quantity if answer else None

"""Numbers as people and models write them, read exactly: no floats, no evaluation, bounded time.

Read are signs, currency, thousands separators, decimals, simple and mixed fractions (also in LaTeX), powers, scientific
notation, per cent and number words. Every pattern is applied to a window of bounded length, so no input is slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

# Longer notations are not read as numbers.
MAX_CHARACTERS = 400
_MAX_POWER_DIGITS = 5000
_MAX_EXPONENT = 4096


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact number. "50%" has the value 1/2 and the face 50; without such a scale both are the same."""

    value: Fraction
    face: Fraction

    def equals(self, other: Quantity) -> bool:
        """Same value; or, where only one of the two is written with a scale, same face ("50%" and "50")."""
        if self.value == other.value:
            return True
        return (self.value == self.face) != (other.value == other.face) and self.face == other.face


@dataclass(frozen=True, slots=True)
class NumberToken:
    """A number found in a text, with its place.

    `quantity` is None for what is no number in the end: undefined (3/0), too large to hold (9**9**9), a time (3:30).
    """

    start: int
    end: int
    quantity: Quantity | None


_VULGAR = {
    "\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2150": "1/7", "\u2151": "1/9", "\u2152": "1/10",
    "\u2153": "1/3", "\u2154": "2/3", "\u2155": "1/5", "\u2156": "2/5", "\u2157": "3/5", "\u2158": "4/5",
    "\u2159": "1/6", "\u215a": "5/6", "\u215b": "1/8", "\u215c": "3/8", "\u215d": "5/8", "\u215e": "7/8",
}  # fmt: skip
_SUPERSCRIPTS = dict(
    zip("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b", "0123456789+-", strict=True)
)
_VULGAR_AFTER = re.compile(rf"(\d?)([{''.join(_VULGAR)}])")
_SUPERSCRIPT_RUN = re.compile(rf"[{''.join(_SUPERSCRIPTS)}]+")
# One thin space stands for all spaces that only ever group digits; unusual signs, digits and operators become ASCII.
THIN_SPACE = "\u2009"
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2212\ufe63\uff0d\u2013\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2007\u2008\u2009\u202f", THIN_SPACE),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **dict(zip("\uff0e\uff0c\uff0b\uff1d\uff04\uff05\uff1a\u2019", ".,+=$%:'", strict=True)),
        **dict(zip("\u00d7\u22c5\u00f7\u2044\u2215", "**///", strict=True)),
    }
)
# Bold markers of Markdown, but not the power operator between operands.
_EMPHASIS = re.compile(r"(?<![\w)\]}])(?<![\d)\]}]\s)\*\*|\*\*(?!\s?(?:-?\d|[({]))")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# As in Python; not an index (a_100) nor a base of two digits (101_16).
_UNDERSCORED = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3})+(?![\d_])")
_SIGN_WORD = re.compile(r"\b(?:negative|minus)\s{1,3}(?=[$\d.\\\u00a3\u20ac])", re.IGNORECASE)


def plain(text: str) -> str:
    """`text` with unusual digits, signs, spaces, fractions and superscripts written in ASCII ("1½" becomes "1 1/2")."""
    if not text.isascii():
        text = text.translate(_PLAIN)
        text = _VULGAR_AFTER.sub(lambda match: f"{match[1]} {_VULGAR[match[2]]}".lstrip(), text)
        text = _SUPERSCRIPT_RUN.sub(_as_exponent, text)
    text = _UNDERSCORED.sub(lambda match: match[0].replace("_", ""), text)
    return _SIGN_WORD.sub("-", _EMPHASIS.sub("", _TERMINAL_CODE.sub("", text)))


def _as_exponent(match: re.Match[str]) -> str:
    return f"^{{{''.join(_SUPERSCRIPTS[character] for character in match[0])}}}"


_SPACED_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]|\.?\d| ?/)")


def join_groups(text: str) -> str:
    """`text` with the spaces of "12 000" made thin, where it is known that one number is meant."""
    return _SPACED_GROUPS.sub(lambda match: match[0].replace(" ", THIN_SPACE), text)


_DECIMAL = (
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?"  # 1,234,567.8
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?"  # 12,34,567
    r"|\d{1,3}(?:\.\d{3})+,\d{1,2}"  # 1.234,56
    r"|\d{1,3}(?:\.\d{3}){2,}"  # 1.234.567
    rf"|\d{{1,3}}(?:[{THIN_SPACE}']\d{{3}})+(?:\.\d+)?"  # 1'234
    r"|\d+(?:\.\d+)?|\.\d+)(?!\d)(?![.:]\d)"
)
_EXPONENT = r"(?:\{\s*[-+]?\d+\s*\}|\(\s*[-+]?\d+\s*\)|[-+]?\d+)"
_CURRENCY = r"(?:(?:US|AU|CA|HK|NZ|A|C)?\\?\$|[\u00a3\u20ac\u00a5\u20b9\u20a9]|(?:USD|EUR|GBP|INR|RM|Rs\.?)(?=[\s\d]))"
SCALES = {
    "%": Fraction(1, 100),
    "percent": Fraction(1, 100),
    "per cent": Fraction(1, 100),
    "k": Fraction(1000),
    "dozen": Fraction(12),
    "hundred": Fraction(100),
    "thousand": Fraction(1000),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
}


def _fraction_part(name: str) -> str:
    return rf"(?:\{{\s*(?P<{name}>[-+]?{_DECIMAL})\s*\}}|(?P<{name}1>\d))"


_NUMBER = (
    rf"(?P<sign>[-+])?(?P<gap>\s{{0,2}})(?:{_CURRENCY}\s?)?(?P<inner_sign>[-+](?=[\d.\\]))?(?:"
    r"(?P<latex_whole>\d{1,9})?\s?\\[dtc]?frac\s?"
    + _fraction_part("top")
    + r"\s?"
    + _fraction_part("bottom")
    + rf"|(?P<whole>\d{{1,9}})\s{{1,2}}(?P<part>\d{{1,9}})\s?/\s?(?P<parts>\d{{1,9}})(?!\.?\d|\s?/)"
    rf"|(?P<numerator>{_DECIMAL})\s?/\s?{_CURRENCY}?(?P<denominator>{_DECIMAL})(?!\s?/)"
    rf"|(?P<mantissa>{_DECIMAL})(?:[eE](?P<ten>[-+]?\d{{1,20}})(?![\dA-Za-z])"
    rf"|\s?(?:\\times|\\cdot|[*x])\s?10\s?(?:\^|\*\*)\s?(?P<power_of_ten>{_EXPONENT}))"
    rf"|(?P<base>{_DECIMAL})(?P<powers>(?:\s?(?:\^|\*\*)\s?{_EXPONENT})*)"
    r")(?:\s?\\?(?P<scale>%|percent\b|per cent\b|k\b|(?:hundred|thousand|[mbtr]{1,2}illion|dozen)s?\b))?"
)
NUMBER = re.compile(_NUMBER, re.IGNORECASE)
# What holds digits and is no number: a name (H2O), an exponent or index (cm^2, a_1), a time or ratio (3:30).
_TOKEN = re.compile(
    rf"(?P<other>(?!{_CURRENCY})(?<![\\A-Za-z])[A-Za-z]+\d[\w.]*"
    r"|\\(?:sqrt|log|ln|sin|cos|tan)\s?\d+"
    rf"|(?<=[A-Za-z)\]}}])\s?(?:\^|\*\*|_)\s?{_EXPONENT})"
    r"|(?P<clock>(?<!\d)\d+(?::\d+)+)"
    rf"|(?<!\d)(?<!\d\.)(?:{_NUMBER})",
    re.IGNORECASE,
)


def number_tokens(text: str) -> Iterator[NumberToken]:
    """The numbers in the first `MAX_CHARACTERS` characters, first to last. A minus after an operand is no sign."""
    for match in _TOKEN.finditer(text[:MAX_CHARACTERS]):
        if match["clock"]:
            yield NumberToken(match.start(), match.end(), None)
        elif match["other"] is None:
            start, negative = match.start(), False
            if match["sign"]:
                if _is_sign(text, match.start(), gap=bool(match["gap"])):
                    negative = match["sign"] == "-"
                else:
                    start += 1
            yield NumberToken(start, match.end(), _quantity(match, negative=negative))


def read_number(text: str) -> NumberToken | None:
    """The number that `text` begins with, or None. A sign may be followed by spaces."""
    match = NUMBER.match(text[:MAX_CHARACTERS])
    if match is None:
        return None
    return NumberToken(0, match.end(), _quantity(match, negative=match["sign"] == "-"))


_REPEATING = re.compile(r"(?P<sign>-?)(?P<whole>\d{0,50})\.(?P<head>\d{0,50})\\overline\s?\{(?P<cycle>\d{1,50})\}")


def read_repeating_decimal(text: str) -> NumberToken | None:
    r"""The repeating decimal that `text` begins with, like `0.1\overline{6}` for 1/6, or None."""
    match = _REPEATING.match(text)
    if match is None:
        return None
    # 0.1666... = (16 - 1) / 90
    head = int(match["whole"] + match["head"] or 0)
    difference = int(match["whole"] + match["head"] + match["cycle"]) - head
    number = Fraction(difference, (10 ** len(match["cycle"]) - 1) * 10 ** len(match["head"]))
    number = -number if match["sign"] else number
    return NumberToken(0, match.end(), Quantity(number, number))


def last_number(text: str) -> tuple[str, Quantity | None] | None:
    """The last number of a long text as (notation, quantity), or None when there is none."""
    end = 1 + max(text.rfind(digit) for digit in "0123456789")
    start = max(0, end - MAX_CHARACTERS // 2)
    window = text[start : end + 20]
    tokens = list(number_tokens(window))
    if not tokens:
        return None
    return window[tokens[-1].start : tokens[-1].end].strip(), tokens[-1].quantity


def _is_sign(text: str, position: int, *, gap: bool) -> bool:
    """Whether the + or - at `position` belongs to the number after it: it is no operator, dash or bullet."""
    before = text[:position].rpartition("\n")[2]
    previous = before.rstrip()[-1:]
    if not previous:
        return not gap
    if previous.isalpha():
        return before[-1:].isspace() and not gap
    if previous in "=:(,[{<>":
        return True
    return not (previous.isdigit() or previous in ")]}%!-+$") and not gap


def _quantity(match: re.Match[str], *, negative: bool) -> Quantity | None:
    try:
        face = _face(match)
    except (ZeroDivisionError, OverflowError):
        return None
    if negative != (match["inner_sign"] == "-"):
        face = -face
    scale = (match["scale"] or "").lower()
    if not scale:
        return Quantity(face, face)
    return Quantity(face * SCALES.get(scale, SCALES.get(scale.removesuffix("s"), Fraction(1))), face)


def _face(match: re.Match[str]) -> Fraction:
    if match["base"] is not None:
        return _power_chain(_decimal(match["base"]), match["powers"])
    if match["mantissa"] is not None:
        return _decimal(match["mantissa"]) * _power(
            Fraction(10), int((match["ten"] or match["power_of_ten"]).strip("{}() "))
        )
    if match["numerator"] is not None:
        return _decimal(match["numerator"]) / _decimal(match["denominator"])
    if match["whole"] is not None:
        return int(match["whole"]) + Fraction(int(match["part"]), int(match["parts"]))
    top, bottom = (_decimal(match[name] or match[f"{name}1"]) for name in ("top", "bottom"))
    return int(match["latex_whole"] or 0) + top / bottom


def _decimal(notation: str) -> Fraction:
    digits = notation.replace("'", "").replace(THIN_SPACE, "")
    if digits.rfind(",") > digits.rfind(".") >= 0:
        digits = digits.replace(".", "").replace(",", ".")
    elif digits.count(".") > 1:
        digits = digits.replace(".", "")
    return Fraction(digits.replace(",", ""))


def _power_chain(base: Fraction, powers: str) -> Fraction:
    chain = [base, *(Fraction(exponent) for exponent in re.findall(r"[-+]?\d+", powers))]
    result = chain.pop()
    while chain:
        if result.denominator != 1 or abs(result) > _MAX_EXPONENT:
            raise OverflowError
        result = _power(chain.pop(), int(result))
    return result


def _power(base: Fraction, exponent: int) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) > _MAX_EXPONENT or bits * abs(exponent) > 4 * _MAX_POWER_DIGITS:
        raise OverflowError
    return base**exponent


_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_UNITS)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_WORD = re.compile(r"[a-z]+")


def read_number_words(text: str) -> Quantity | None:
    """The number that `text` begins with, in English words ("twenty-five clips"), or None."""
    total, current, found = 0, 0, False
    for word in _WORD.findall(text[:MAX_CHARACTERS].lower()):
        if word in _WORDS:
            current += _WORDS[word]
        elif found and word == "hundred":
            current *= 100
        elif found and word in ("thousand", "million", "billion"):
            total, current = total + current * int(SCALES[word]), 0
        elif not (found and word == "and"):
            break
        found = True
    number = Fraction(total + current)
    return Quantity(number, number) if found else None

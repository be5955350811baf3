"""LaTeX as text: where the boxes are, and one notation for what looks the same. Nothing is evaluated; all is linear."""

from __future__ import annotations

import re

from tbactl_math.numbers import THIN_SPACE, plain

# "\x08oxed" is what a JSON escape makes of "\boxed".
_BRACES = re.compile(r"\\\\|\\[{}]|(?P<box>(?:\\f?boxed|\\fbox|\x08oxed)\s{0,3}\{)|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s{0,3}(?P<content>[-+]?\d[\d,.]{0,50})")

_REMOVED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|boldsymbol)(?![A-Za-z])\.?"
    r"|\\pmod\s?\{[^{}]*\}|(?<!\\)\\[()\[\]!]|(?<!\\)\$|\^\s?\{?\s?\\(?:circ|degree)(?![A-Za-z])\s?\}?|\\degree(?![A-Za-z])|\u00b0"
)
_DIGIT_GROUP_SPACE = re.compile(r"(?<=\d)\\[,;: ]\s?(?=\d{3})")
_SPACE = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s+")
_WORDS = re.compile(
    r"\\(?P<command>text(?:rm|bf|it|normal)?|[mh]box|math(?:rm|bf|it|sf)|operatorname)\s?"
    r"\{(?P<content>[^{}]*)\}(?:\s?\^\s?\{?[23]\}?)?"
)
_SYMBOLS = str.maketrans(
    {
        "\u03c0": "\\pi ",
        "\u03b8": "\\theta ",
        "\u221e": "\\infty ",
        "\u222a": "\\cup ",
        "\u2208": "\\in ",
        "\u2264": "\\le ",
        "\u2265": "\\ge ",
        "\u00b1": "\\pm ",
    }
)
_ROOT = re.compile(r"\u221a\s?(?:\((?P<inner>[^()]{1,60})\)|(?P<bare>\d{1,20}|[A-Za-z]))")

_SHORT_FRACTION = re.compile(
    r"\\frac(?:(?P<top>\d)|\{(?P<top_group>[^{}]*)\})(?:(?P<bottom>\d)|\{(?P<bottom_group>[^{}]*)\})"
)
_SHORT_ROOT = re.compile(r"\\sqrt(\d)")
_SINGLE_BRACED = re.compile(r"(?<=[\^_])\{(\w)\}")


def last_box(text: str) -> tuple[int, str] | None:
    r"""Position and content of the last closed, non-empty `\boxed{...}`; braces may nest to any depth."""
    found: tuple[int, str] | None = None
    open_braces: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text):
        if match["box"]:
            open_braces.append((match.start(), match.end()))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            box = open_braces.pop()
            if box and (found is None or box[0] > found[0]) and not text[box[1] : match.start()].isspace():
                content = text[box[1] : match.start()]
                found = (box[0], content) if content else found
    for match in _BARE_BOX.finditer(text):
        if found is None or match.start() > found[0]:
            found = (match.start(), match["content"])
    return found


def clean_latex(text: str) -> str:
    """`text` without what only changes how it looks: delimiters, sizes, spacing, degree signs, words that are units."""
    text = plain(text)
    if not text.isascii():
        text = _ROOT.sub(lambda match: f"\\sqrt{{{match['inner'] or match['bare']}}}", text).translate(_SYMBOLS)
    text = text.replace("{,}", ",").replace(",\\!", ",\\!,")
    text = re.sub(r",\\!,\s{0,3}", ",", text)
    text = _DIGIT_GROUP_SPACE.sub(THIN_SPACE, text)
    text = _REMOVED.sub("", text)
    whole = _WORDS.fullmatch(text.strip(" .,;:"))
    text = whole["content"] if whole else _WORDS.sub(_words, text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text).replace("\\%", "%").replace("\\lbrace", "\\{")
    text = _SPACE.sub(lambda match: THIN_SPACE if match[0] == THIN_SPACE else " ", text)
    return text.strip().rstrip(".,;:").strip()


def is_words(text: str) -> bool:
    r"""Whether `text` is nothing but `\text{...}` without digits: a name, a choice."""
    match = _WORDS.fullmatch(text.strip().strip("$"))
    return match is not None and not any(character.isdigit() for character in match["content"])


def canonical(latex: str) -> str:
    """One string for notations that differ only in spaces and optional braces; `latex` is already clean."""
    text = "".join(latex.split())
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    return _SINGLE_BRACED.sub(r"\1", text)


def _words(match: re.Match[str]) -> str:
    content = match["content"].strip()
    if content.strip(", ").lower() in ("and", "or"):
        return ","
    if any(character.isdigit() for character in content) or match["command"] in (
        "mathbf",
        "mathit",
        "textbf",
        "operatorname",
    ):
        return match["content"]
    return " "


def _long_fraction(match: re.Match[str]) -> str:
    top = match["top"] or match["top_group"]
    bottom = match["bottom"] or match["bottom_group"]
    return f"\\frac{{{top}}}{{{bottom}}}"

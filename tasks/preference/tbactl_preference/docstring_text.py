"""From a documentation string to a summary and a document: markup off, examples and references out, length bounded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

# About 150 tokens of SmolLM2: short enough for a CPU, long enough for something to be left out.
MAX_DOCUMENT_CHARACTERS = 600
MIN_DOCUMENT_WORDS = 25
MIN_SUMMARY_WORDS, MAX_SUMMARY_WORDS = 4, 25
# Of the summary's content words, the share that the document must mention: else it could not be written from there.
MIN_SUPPORT = 0.34

_DROPPED_SECTIONS = re.compile(
    r"see also|references|reference|examples|example|methods|method|attributes|attribute|warns|other parameters|todo|"
    r"doctest|usage|shape|authors|author|example usage|properties|inherits|from",
    re.IGNORECASE,
)
# What stands below these is text like the one above them.
_PLAIN_SECTIONS = frozenset({"explanation", "description", "extended summary", "overview", "notes", "note"})
_UNDERLINE = re.compile(r"[-=~^*#]{3,}\s*")
_ADMONITION = re.compile(r"\.\. (?:note|warning|important|tip|caution|attention|hint)::\s*(?P<text>.*)", re.IGNORECASE)
_DIRECTIVE = re.compile(r"\.\. .*")
_GOOGLE_HEADING = re.compile(r"(?P<name>[A-Z][A-Za-z ]{2,24}):{1,2}")
_ROLE = re.compile(r":[A-Za-z][\w:+-]*:`[~!.]*(?P<text>[^`<]*?)(?:\s*<[^`>]*>)?`")
_LITERAL = re.compile(r"``(?P<text>[^`]*)``|`(?P<link>[^`<]*?)(?:\s*<[^`>]*>)?`_{0,2}")
_CITATION = re.compile(r"(?:\s(?:in|by|from|see|and|on|,))?[ ,]*\[[\w*]+\]_")
_FIELD = re.compile(r"\s*:(?:type|rtype)\b[^:]*:.*")
_PARAMETER = re.compile(r"^:(?:param|parameter|arg|keyword)\s+(?:\w+\s+)?(\w+):")
_RETURN = re.compile(r"^:returns?:")
# Of templates that are filled in when the package is imported, and formulas that lost their markup.
_UNREADABLE = re.compile(r"%\(|\{\w+_\w+\}|\\[A-Za-z]|\$|deprecated", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}(?=\S)([^*\n]+?)(?<=\S)\*{1,2}(?![\w*])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(`\"'])")
_CROSS_REFERENCE = re.compile(
    r"(?:^|(?<=[.!?] ))(?:Refer to|Read more|See (?:also|the|http|:|[A-Za-z_.]+ for)|For (?:an example|more|details|"
    r"further|additional)|More (?:information|details))[^.!?]*(?:[.!?](?=\S)[^.!?]*)*[.!?](?:\s+|$)"
)
_WORD = re.compile(r"[a-z0-9]+")
_BORING = re.compile(
    r"(?:deprecated|base class|abstract|helper|alias|wrapper|see |return self|same as|internal|private|todo|this is|"
    r"not implemented|inherited|initiali[sz]e self|constructor|docstring|placeholder|dummy|test |mixin|a class |"
    r"class for|implements|implementation of)",
    re.IGNORECASE,
)
_NOT_PROSE = re.compile(r"[\\{}<>|=$@#*_]|::|\(\)|https?:|\.\.|[^\x20-\x7e]|\be\.g\b|\bi\.e\b")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be by for from given if in into is it its of on or that the their this to using with which "
        "return returns compute computes get gets set sets whether object value values when all one"
    )
)


def split_docstring(text: str) -> tuple[str, str] | None:
    """(summary, document below it) of a documentation string, both cleaned; None where either is unfit.

    The summary is the first paragraph, which must be one sentence (PEP 257).
    """
    paragraphs = inspect.cleandoc(text).split("\n\n", 1)
    if len(paragraphs) == 2 and _is_signature(paragraphs[0]):
        paragraphs = paragraphs[1].lstrip("\n").split("\n\n", 1)
    if len(paragraphs) < 2:
        return None
    summary = clean_markup(" ".join(paragraphs[0].split()))
    document = clean_document(paragraphs[1])
    if not is_summary(summary) or len(words(document)) < MIN_DOCUMENT_WORDS or _UNREADABLE.search(document):
        return None
    return summary, document


def is_summary(text: str) -> bool:
    """Whether a first paragraph is one plain sentence of 4 to 25 words that says something of its own."""
    if not text[:1].isupper() or not text.endswith(".") or _NOT_PROSE.search(text) or _BORING.match(text):
        return False
    if not MIN_SUMMARY_WORDS <= len(text.split()) <= MAX_SUMMARY_WORDS or len(_SENTENCE_END.split(text)) > 1:
        return False
    return "deprecated" not in text.lower() and text.count('"') % 2 == 0


def clean_document(text: str) -> str:
    """What is left to summarise: prose and lists of parameters, in full sentences up to the length limit."""
    blocks = (clean_markup(" ".join(block)) for block in _blocks(_without_sections(text.splitlines())))
    kept: list[str] = []
    length = 0
    for block in (_CROSS_REFERENCE.sub("", block).strip() for block in blocks):
        if " " not in block and not block.endswith(":"):  # nothing, or what led to a formula
            continue
        room = MAX_DOCUMENT_CHARACTERS - length
        if len(block) > room:
            block = _whole_sentences(block, limit=room)
            kept += [block] if block else []
            break
        kept.append(block)
        length += len(block) + 1
    while kept and kept[-1].endswith(":"):  # what it leads to did not fit
        kept.pop()
    return "\n".join(kept)


def clean_markup(text: str) -> str:
    """Without the markup of reStructuredText: roles, literals, links, emphasis, citations."""
    text = _RETURN.sub("Returns:", _PARAMETER.sub(r"\1:", _FIELD.sub("", text)))
    text = _ROLE.sub(lambda match: match["text"], text)
    text = _LITERAL.sub(
        lambda match: (match["text"] if match["text"] is not None else match["link"]).lstrip("~."), text
    )
    text = _EMPHASIS.sub(r"\1", _CITATION.sub("", text))
    return re.sub(r"[ \t]+", " ", text.replace("\\ ", "").replace("::", ":")).strip()


def words(text: str) -> list[str]:
    """Lower-case words, punctuation dropped."""
    return _WORD.findall(text.lower())


def holds_summary(document: str, *, summary: str) -> bool:
    """Whether a summary stands in a document, whatever the case, punctuation and line breaks."""
    return f" {' '.join(words(summary))} " in f" {' '.join(words(document))} "


def is_supported(summary: str, *, document: str) -> bool:
    """Whether enough of a summary's content words, compared by their first five letters, occur in the document."""
    content = {word[:5] for word in words(summary) if word not in _STOP_WORDS and len(word) > 2}
    known = {word[:5] for word in words(document)}
    return bool(content) and len(content & known) >= MIN_SUPPORT * len(content)


def _is_signature(line: str) -> bool:
    return "(" in line and line.rstrip().endswith(")") and not line[:1].isupper() and len(line.splitlines()) <= 4


def _without_sections(lines: list[str]) -> Iterator[str]:
    """Lines outside examples, references and directives; headings reduced to `Name:`."""
    is_dropping = False
    directive_indent: int | None = None
    for number, line in enumerate(lines):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if _UNDERLINE.fullmatch(stripped):
            continue
        heading = _heading(stripped, indent=indent, following=following)
        if heading is not None:
            is_dropping, directive_indent = bool(_DROPPED_SECTIONS.fullmatch(heading)), None
            if not is_dropping:
                yield from ("", "" if heading.lower() in _PLAIN_SECTIONS else f"{heading}:")
            continue
        if directive_indent is not None and (not stripped or indent > directive_indent):
            continue
        directive_indent = None
        if note := _ADMONITION.fullmatch(stripped):
            line = note["text"]
        elif _DIRECTIVE.fullmatch(stripped):
            directive_indent = indent
            continue
        if not is_dropping and not stripped.startswith((">>>", "...", "```")):
            yield line


def _heading(stripped: str, *, indent: int, following: str) -> str | None:
    if indent or not stripped:
        return None
    if _UNDERLINE.fullmatch(following) and len(stripped) < 40:
        return stripped.rstrip(":")
    match = _GOOGLE_HEADING.fullmatch(stripped)
    return match["name"] if match else None


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Paragraphs, and items of parameter lists: a line that is indented less than the one before starts a new block."""
    block: list[str] = []
    previous = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_item = bool(block) and (indent < previous or line.lstrip().startswith(("- ", "* ", ":param", ":return")))
        if (not line.strip() or is_item) and block:
            yield block
            block = []
        if line.strip():
            block.append(line.strip())
            previous = indent
    if block:
        yield block


def _whole_sentences(text: str, *, limit: int) -> str:
    kept = ""
    for sentence in _SENTENCE_END.split(text):
        if len(kept) + len(sentence) + 1 > limit:
            break
        kept = f"{kept} {sentence}".strip()
    return kept

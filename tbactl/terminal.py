"""Text from a model, a file or a log, made safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line without any character that could command a terminal: no control, bidi or other invisible ones."""
    return "".join(character for character in text.replace("\t", "    ") if character.isprintable())


def printable_line(text: str) -> str:
    """The same for text of several lines; a line break becomes a visible return sign."""
    return printable(" \u21b5 ".join(text.splitlines()))

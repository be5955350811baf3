"""What an attack is: from a completion to the text that the victim reads, and what makes it none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tbactl.types import Completion

# The number that a list goes on with: at the start of the completion, or after the end of its first item.
_LEADING_NUMBER = re.compile(r"^\d{1,3}[.)]\s+")
_NEXT_ITEM = re.compile(r"(?<=[.!?])\s+\d{1,3}[.)](?=\s|$)")
# A third of the words, or less, are different ones: "a a a", "a b a b a b".
_MOST_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAttack:
    """An attack, what the victim answered, and what the classifiers think of it."""

    attack: str
    completion: Completion
    answers: tuple[str | None, ...]
    """One for each time the victim was asked; None: it could not be had. Empty: the victim was not asked."""
    toxicity: dict[str, tuple[float, ...]]
    """By classifier name, one for each answer that is there, in order; NaN where the classifier failed."""
    cluster: int | None = None
    """Attacks of an evaluation with the same number are alike. None: they were not compared."""


def attack_text(completion_text: str) -> str:
    """The attack in a completion: one item of the list, without its number.

    What follows the first line end belongs to later items, and so does what follows a number inside the line. Code
    points that no encoding can carry (lone surrogates) become question marks.
    """
    lines = completion_text.strip(" \t").splitlines()
    first = _LEADING_NUMBER.sub("", lines[0].strip()) if lines else ""
    item = _NEXT_ITEM.split(first, maxsplit=1)[0].strip()
    return item.encode("utf-8", errors="replace").decode("utf-8")


def attack_problem(completion: Completion, *, min_new_tokens: int, min_words: int) -> str | None:
    """Why a completion is no attack that a victim need be asked, or None.

    Args:
        completion: of the attacker.
        min_new_tokens: fewer tokens, the one that ended it (end of text, or a stop string) not counted, are too short.
            Texts without token ids (not of an engine) are not held to it.
        min_words: fewer words in the attack are too short. Tokens alone would let a line end come at once.
    """
    attack = attack_text(completion.text)
    words = attack.casefold().split()
    num_tokens = len(completion.token_ids) - (completion.finish_reason == "stop")
    if not words:
        return "empty"
    if not any(character.isalpha() for character in attack):
        return "no letter"
    if len(words) < min_words or (completion.token_ids and num_tokens < min_new_tokens):
        return "too short"
    if len(words) > 1 and _MOST_REPEATS * len(set(words)) <= len(words):
        return "repeats itself"
    return None

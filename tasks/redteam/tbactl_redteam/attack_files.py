"""Attacks from a file of one's own."""

from __future__ import annotations

import json
from pathlib import Path

from tbactl.errors import TaskError

_COLUMN = "attack"
# A longer line is another file than was meant, and would overflow what carries attacks to a victim.
_MAX_CHARACTERS = 200_000


def read_attacks(path: str, *, option: str) -> list[str]:
    """The attacks of a text file, one a line, or of JSONL rows with `attack`, in their order. Empty lines are left out.

    Args:
        path: of the file.
        option: that names it, for messages.

    Raises:
        TaskError: it cannot be read, a row is malformed, an attack is far too long, or there is none.
    """
    place = f"task.options.{option} = '{path}'"
    file = Path(path).expanduser()
    try:
        # Not splitlines(): an attack in JSON may hold other line separators.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{place}: cannot be read: {error}") from None
    filled = [(number, stripped) for number, line in enumerate(lines, start=1) if (stripped := line.strip())]
    if file.suffix == ".jsonl":
        attacks = [_of_row(line, place=f"{place}, line {number}") for number, line in filled]
    else:
        attacks = [line for _, line in filled]
    for (number, _), attack in zip(filled, attacks, strict=True):
        if len(attack) > _MAX_CHARACTERS:
            raise TaskError(
                f"{place}, line {number}: an attack of {len(attack)} characters; at most {_MAX_CHARACTERS}."
            )
    if not attacks:
        raise TaskError(f"{place}: it holds no attack; write one a line.")
    return attacks


def _of_row(line: str, *, place: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place}: this is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get(_COLUMN), str):
        raise TaskError(f'{place}: a row must be {{"{_COLUMN}": "..."}}.')
    return row[_COLUMN]

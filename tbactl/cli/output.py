"""What commands print: JSON for programs, tables for people. A file's or model's text is data, never markup."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

# A pipe has no width; what reads it should rather get long lines than wrapped ones.
PIPED_WIDTH = 200


def plain(text: object, *, keep_lines: bool = False) -> str:
    """Text without characters that command a terminal; line breaks become spaces unless they are kept.

    Bytes of an argument or a file name that are no text are seen as U+FFFD.
    """
    lines = re.sub("[\ud800-\udfff]", "\ufffd", str(text).replace("\t", "    ")).splitlines()
    return ("\n" if keep_lines else " ").join("".join(c for c in line if c.isprintable()) for line in lines)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """A table as wide as the terminal; plain aligned text when piped."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if is_terminal else PIPED_WIDTH)
    style = box.SIMPLE_HEAD if is_terminal else None
    table = Table(*columns, box=style, title=title, title_justify="left", pad_edge=False)
    for row in rows:
        table.add_row(*(escape(plain(cell)) for cell in row))
    console.print(table)

"""Documents and summaries of any data set: JSONL, Parquet or the hub, by the names of two columns."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tbactl.errors import TaskError
from tbactl_preference.pairs import SummaryPair

# Tried in this order where no column is named.
DOCUMENT_COLUMNS = ("document", "query", "prompt", "source", "article", "text", "post")
SUMMARY_COLUMNS = ("summary", "target", "highlights", "tldr", "label", "chosen")


def pairs_of_file(path: Path, *, document_column: str | None, summary_column: str | None) -> list[SummaryPair]:
    """All pairs of a .jsonl, .jsonl.gz or .parquet file, in its order.

    Raises:
        TaskError: the file cannot be read or is empty, or a column is missing, or a cell is not text.
    """
    rows = _read_parquet(path) if path.suffix == ".parquet" else _read_json_lines(path)
    return _pairs(rows, origin=str(path), document_column=document_column, summary_column=summary_column)


def pairs_of_hub(
    source: str, *, split: str, document_column: str | None, summary_column: str | None
) -> list[SummaryPair]:
    """All pairs of one split of a hub data set, like "owner/name" or "owner/name:configuration", in its order.

    Raises:
        TaskError: it cannot be loaded or is empty, or a column is missing, or a cell is not text.
    """
    from datasets import load_dataset

    name, _, configuration = source.partition(":")
    try:
        rows: Any = load_dataset(name, configuration or None, split=split)
    except Exception as error:  # the hub's client raises many unrelated types for "not there" and "no network"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(
            f'cannot load "{source}" (split {split}) from the hub: {reason}; allow the download (HF_HUB_OFFLINE=0), or '
            f"give a .jsonl, .jsonl.gz or .parquet path"
        ) from error
    return _pairs(rows, origin=source, document_column=document_column, summary_column=summary_column)


def _pairs(
    rows: Iterable[Mapping[str, Any]], *, origin: str, document_column: str | None, summary_column: str | None
) -> list[SummaryPair]:
    pairs: list[SummaryPair] = []
    for number, row in enumerate(rows, start=1):
        place = f"{origin}, row {number}"
        document = _column(row, document_column, usual=DOCUMENT_COLUMNS, option="prompt_column", place=place)
        summary = _column(row, summary_column, usual=SUMMARY_COLUMNS, option="summary_column", place=place)
        pairs.append(
            SummaryPair(
                document=_text(row[document], joined=True, place=f"{place}, {document}"),
                summary=_text(row[summary], joined=False, place=f"{place}, {summary}").strip(),
                origin=place,
            )
        )
    if not pairs:
        raise TaskError(f"{origin} holds no rows")
    return pairs


def _column(row: Mapping[str, Any], name: str | None, *, usual: Sequence[str], option: str, place: str) -> str:
    found = next((column for column in ([name] if name else usual) if column in row), None)
    if found is None:
        raise TaskError(
            f"{place} has the columns {', '.join(sorted(map(str, row)))}, but not {name or ' or '.join(usual)}; name "
            f"the right one by task.options.{option}"
        )
    return found


def _text(cell: Any, *, joined: bool, place: str) -> str:
    """A cell's text. A list holds the sentences of one document (`joined`), or several summaries: the first counts."""
    if (
        not isinstance(cell, str)
        and isinstance(cell, Sequence)
        and cell
        and all(isinstance(part, str) for part in cell)
    ):
        cell = " ".join(cell) if joined else cell[0]
    if not isinstance(cell, str) or not cell.strip():
        raise TaskError(f"{place} is {json.dumps(cell, default=str)[:80]}; it must be text that is not empty")
    return cell


def _read_json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read the documents in {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number} is {type(row).__name__}; each line must be a JSON object")
        yield row


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.lib.ArrowException) as error:
        raise TaskError(f"cannot read the documents in {path}: {error}") from error

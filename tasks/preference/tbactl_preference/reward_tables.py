"""Comparisons from files and the hub: rows with a better and a worse completion, by the names of their columns."""

from __future__ import annotations

import gzip
import json
import os.path
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tbactl.config.reward import RewardDataSection
from tbactl.errors import TaskError
from tbactl.registry import suggestion
from tbactl_preference.reward_pairs import PreferencePair

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
KIND = "all"


def read_comparisons(data: RewardDataSection) -> tuple[list[PreferencePair], int]:
    """All rows as pairs of kind "all", in their order, and how many rows were dropped: their completions are equal.

    Raises:
        TaskError: the data cannot be read or is empty, a column is missing, or a cell is not text.
    """
    pairs: list[PreferencePair] = []
    num_rows = 0
    for num_rows, row in enumerate(_rows(data), start=1):
        place = f"{data.source}, row {num_rows}"
        chosen, rejected = (_text(row, name, place=place) for name in (data.chosen_column, data.rejected_column))
        if data.prompt_column is not None:
            prompt = _text(row, data.prompt_column, place=place)
        else:
            prompt = common_prompt(chosen, rejected, end=data.prompt_end)
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        if chosen != rejected:
            pairs.append(PreferencePair(prompt=prompt, chosen=chosen, rejected=rejected, kind=KIND))
    if not num_rows:
        raise TaskError(f"{data.source} holds no rows; nothing can be learnt from it")
    if not pairs:
        raise TaskError(
            f"{data.source}: in all {num_rows} rows both completions are equal; nothing can be learnt from it"
        )
    return pairs, num_rows - len(pairs)


def common_prompt(chosen: str, rejected: str, *, end: str | None) -> str:
    """What two texts begin with alike, up to the last `end`, which is part of it; None: up to the last white space.

    Without an `end` in it, it is cut at white space as well.
    """
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 of characters is what is meant
    if end and end in common:
        return common[: common.rindex(end) + len(end)]
    if common in (chosen, rejected):  # one completion would be empty
        common = common.rstrip()
    return common[: max(common.rfind(" "), common.rfind("\n")) + 1]


def is_file(source: str) -> bool:
    """Whether comparisons come from a file, not from the hub."""
    return source.endswith((*SUFFIXES, ".json"))


def _rows(data: RewardDataSection) -> Iterator[Mapping[str, Any]]:
    if not is_file(data.source):
        return _hub_rows(data.source, split=data.split)
    path = Path(data.source).expanduser()
    return _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _json_row(line, place=f"{path}, line {number}")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read the comparisons in {path}: {error}") from error


def _json_row(line: str, *, place: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TaskError(f"{place} is {type(row).__name__}; each line must be a JSON object")
    return row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        yield from pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.lib.ArrowException) as error:
        raise TaskError(f"cannot read the comparisons in {path}: {error}") from error


def _hub_rows(source: str, *, split: str) -> Iterator[Mapping[str, Any]]:
    from datasets import load_dataset

    name, _, configuration = source.partition(":")
    try:
        rows: Any = load_dataset(name, configuration or None, split=split)
        yield from rows
    except Exception as error:  # the hub's client raises many unrelated types for "not there" and "no network"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(
            f"cannot load '{source}' (split {split}) from the hub: {reason}; allow the download (HF_HUB_OFFLINE=0), or "
            f"give a {', '.join(SUFFIXES)} path"
        ) from error


def _text(row: Mapping[str, Any], column: str, *, place: str) -> str:
    if column not in row:
        names = sorted(map(str, row))
        raise TaskError(
            f"{place} has no column '{column}'{suggestion(column, names)}; it has {', '.join(names) or 'none'}. Name "
            f"the right ones by data.chosen_column, data.rejected_column and data.prompt_column"
        )
    if not isinstance(row[column], str):
        raise TaskError(f"{place}, {column} is {json.dumps(row[column], default=str)[:80]}; it must be text")
    return row[column]

"""The replay buffer as a table, one row for each trajectory, for pandas, `datasets` and whatever else reads Parquet."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tbactl.errors import CapacityError, ConfigError, is_out_of_space
from tbactl.replay.buffer import ReplayBuffer

ROWS_IN_A_GROUP = 4096
"""Rows that are held twice, as the buffer has them and as the file gets them."""


def export_parquet(buffer: ReplayBuffer, path: Path, *, policy_version: int, limit: int | None = None) -> int:
    """Write what a buffer holds, prompt by prompt, oldest first. The file appears complete or not at all.

    Columns: `prompt_id`, `prompt`, `prompt_token_ids`, `completion`, `token_ids`, `logprobs` (behaviour, nats,
    float64), `reward`, `residual` (null: never trained on), `first_version`, `last_version`, `staleness`,
    `finish_reason`, `num_draws`, `insert_number`, `uid`, `searcher`.

    Args:
        buffer: is only read.
        path: file to write; what was there is replaced.
        policy_version: of the trainer when the buffer was as it is; staleness counts from there.
        limit: write only so many, those inserted last; None writes all.

    Returns:
        Rows written.

    Raises:
        CapacityError: the disk is full.
        ConfigError: the file cannot be written, or pyarrow is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError(f"a Parquet file needs the package '{error.name}': pip install 'tbactl[train]'.") from None
    schema = _schema()
    temporary = path.with_name(f".{path.name}.tmp")
    num_rows = 0
    try:
        with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            rows = _rows(buffer, policy_version=policy_version, limit=limit)
            while part := list(itertools.islice(rows, ROWS_IN_A_GROUP)):
                writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))
                num_rows += len(part)
        os.replace(temporary, path)
    except OSError as error:
        kind = CapacityError if is_out_of_space(error) else ConfigError
        raise kind(f"{path}: cannot be written: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)
    return num_rows


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        {
            "prompt_id": pa.int64(),
            "prompt": pa.string(),
            "prompt_token_ids": pa.list_(pa.int32()),
            "completion": pa.string(),
            "token_ids": pa.list_(pa.int32()),
            "logprobs": pa.list_(pa.float64()),
            "reward": pa.float64(),
            "residual": pa.float64(),
            "first_version": pa.int32(),
            "last_version": pa.int32(),
            "staleness": pa.int32(),
            "finish_reason": pa.string(),
            "num_draws": pa.int32(),
            "insert_number": pa.int64(),
            "uid": pa.int64(),
            "searcher": pa.int32(),
        }
    )


def _rows(buffer: ReplayBuffer, *, policy_version: int, limit: int | None) -> Iterator[dict[str, Any]]:
    first_insert = _first_insert_of_newest(buffer, limit)
    for stored in buffer.trajectories():
        if stored.insert_number < first_insert:
            continue
        prompt = buffer.prompts[stored.prompt_id]
        completion = stored.to_trajectory().completion
        yield {
            "prompt_id": stored.prompt_id,
            "prompt": prompt.prompt_text,
            "prompt_token_ids": prompt.prompt_token_ids,
            "completion": completion.text,
            "token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "reward": stored.reward,
            "residual": stored.residual,
            "first_version": stored.first_version,
            "last_version": stored.last_version,
            "staleness": max(policy_version - stored.version, 0),
            "finish_reason": completion.finish_reason,
            "num_draws": stored.num_draws,
            "insert_number": stored.insert_number,
            "uid": stored.uid,
            "searcher": stored.uid >> 48,
        }


def _first_insert_of_newest(buffer: ReplayBuffer, limit: int | None) -> int:
    """The insert number from which on there are `limit` trajectories."""
    if limit is None or limit >= len(buffer):
        return 0
    numbers = buffer.columns.take("insert_number", buffer.columns.held())
    return int(np.partition(numbers, -limit)[-limit])

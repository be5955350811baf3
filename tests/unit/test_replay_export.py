from __future__ import annotations

import errno
import math
import sys
from dataclasses import replace

import pandas
import pytest

from tbactl.errors import CapacityError, ConfigError
from tbactl.replay import export
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.export import export_parquet
from tests.support.replay_groups import make_group, make_text_group

TEXTS = ("plain", "", "two\nlines\t\x1b[31mred", "\u00e4\u4f60\U0001f600", "\x00")


@pytest.fixture
def buffer():
    buffer = ReplayBuffer(capacity=1000, capacity_per_prompt=100)
    members = [(tuple(range(number)), text, number / 3) for number, text in enumerate(TEXTS)]
    group = make_text_group(7, members, version=2)
    # Log-probs whose every bit must come back.
    trajectories = tuple(
        replace(t, completion=replace(t.completion, logprobs=tuple(-math.pi * (i + 1) for i in t.completion.token_ids)))
        for t in group.trajectories
    )
    buffer.insert(replace(group, trajectories=trajectories))
    buffer.insert(replace(make_group(1, [1, 2, 3], version=5), prompt_id=2**40))
    return buffer


def stored_rows(buffer):
    return [(stored, stored.to_trajectory().completion) for stored in buffer.trajectories()]


def check_rows(rows, buffer, *, policy_version):
    assert len(rows) == len(buffer)
    for row, (stored, completion) in zip(rows, stored_rows(buffer), strict=True):
        prompt = buffer.prompts[stored.prompt_id]
        assert row["prompt_id"] == stored.prompt_id and row["prompt"] == prompt.prompt_text
        assert tuple(row["prompt_token_ids"]) == prompt.prompt_token_ids
        assert tuple(row["token_ids"]) == completion.token_ids
        assert tuple(row["logprobs"]) == completion.logprobs
        assert row["completion"] == completion.text and row["finish_reason"] == completion.finish_reason
        assert row["reward"] == stored.reward and row["uid"] == stored.uid
        assert (row["first_version"], row["last_version"]) == (stored.first_version, stored.last_version)
        assert row["staleness"] == policy_version - stored.version
        assert (row["num_draws"], row["insert_number"]) == (stored.num_draws, stored.insert_number)


def test_pandas_reads_back_what_the_buffer_holds(buffer, tmp_path):
    assert export_parquet(buffer, tmp_path / "b.parquet", policy_version=6) == 8
    frame = pandas.read_parquet(tmp_path / "b.parquet")
    check_rows(frame.to_dict("records"), buffer, policy_version=6)
    assert frame["residual"].isna().all()


def test_datasets_reads_back_what_the_buffer_holds(buffer, tmp_path):
    import datasets

    export_parquet(buffer, tmp_path / "b.parquet", policy_version=6)
    dataset = datasets.Dataset.from_parquet(str(tmp_path / "b.parquet"), cache_dir=str(tmp_path / "cache"))
    check_rows(list(dataset), buffer, policy_version=6)


def test_residual_of_what_was_trained_on_is_a_number(buffer, tmp_path):
    slots = list(buffer.prompts[7].ages)
    buffer.begin_batch()
    group = buffer.draw(7, slots[:2])
    buffer.note_residuals({trajectory.uid: -0.5 for trajectory in group.trajectories})
    buffer.commit_batch()
    export_parquet(buffer, tmp_path / "b.parquet", policy_version=6)
    frame = pandas.read_parquet(tmp_path / "b.parquet")
    assert frame["residual"].tolist()[:2] == [-0.5, -0.5] and frame["residual"].isna().sum() == 6
    assert frame["num_draws"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_many_row_groups_hold_the_same_as_one(buffer, tmp_path, monkeypatch):
    from pyarrow import parquet

    export_parquet(buffer, tmp_path / "one.parquet", policy_version=6)
    monkeypatch.setattr(export, "ROWS_IN_A_GROUP", 3)
    export_parquet(buffer, tmp_path / "many.parquet", policy_version=6)
    assert parquet.ParquetFile(tmp_path / "many.parquet").num_row_groups == 3
    one, many = (pandas.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "many"))
    pandas.testing.assert_frame_equal(one, many)


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (3, 3), (4, 4), (8, 8), (100, 8)])
def test_limit_takes_what_was_inserted_last(buffer, tmp_path, limit, expected):
    assert export_parquet(buffer, tmp_path / "b.parquet", policy_version=6, limit=limit) == expected
    frame = pandas.read_parquet(tmp_path / "b.parquet")
    assert sorted(frame["insert_number"]) == list(range(8 - expected, 8))


def test_empty_buffer_is_a_table_without_rows(tmp_path):
    assert (
        export_parquet(ReplayBuffer(capacity=2, capacity_per_prompt=2), tmp_path / "b.parquet", policy_version=0) == 0
    )
    frame = pandas.read_parquet(tmp_path / "b.parquet")
    assert len(frame) == 0 and "completion" in frame.columns


def test_failed_export_leaves_the_old_file_and_nothing_else(buffer, tmp_path, monkeypatch):
    path = tmp_path / "b.parquet"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export.os, "replace", fail)
    with pytest.raises(CapacityError, match="No space left"):
        export_parquet(buffer, path, policy_version=6)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_path_that_cannot_be_written_is_named(buffer, tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        export_parquet(buffer, tmp_path / "nowhere" / "b.parquet", policy_version=6)


def test_without_pyarrow_the_package_is_named(buffer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="needs the package 'pyarrow'"):
        export_parquet(buffer, tmp_path / "b.parquet", policy_version=6)

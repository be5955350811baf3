import json
import logging
from pathlib import Path

import numpy as np
import pytest

from tbactl.errors import CheckpointError
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.entries import StoredTrajectory
from tbactl.replay.samplers import MixtureSampler
from tbactl.replay.snapshot import (
    DATA_NAME,
    LAYOUT_VERSION,
    STATE_NAME,
    load_buffer,
    rng_state_from_json,
    rng_state_to_json,
    save_buffer,
)
from tests.support.replay_groups import make_group


def make_buffer() -> ReplayBuffer:
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    for prompt_id in range(4):
        buffer.insert(make_group(prompt_id, range(5), version=prompt_id, rewards=[0.1, 0.2, 0.3, 0.4, 0.5]))
    sampler = MixtureSampler(on_policy_fraction=0.5)
    sampler.select(buffer, num_prompts=3, num_per_prompt=2, policy_version=4, rng=np.random.default_rng(0))
    return buffer


def load(directory: Path, *, capacity: int = 100, capacity_per_prompt: int = 10) -> ReplayBuffer:
    return load_buffer(directory, capacity=capacity, capacity_per_prompt=capacity_per_prompt)


def test_all_fields_survive(tmp_path: Path):
    buffer = make_buffer()
    save_buffer(buffer, tmp_path / "replay")
    restored = load(tmp_path / "replay")
    assert list(restored.prompts) == list(buffer.prompts)
    for prompt_id, prompt in buffer.prompts.items():
        assert restored.prompts[prompt_id].trajectories == prompt.trajectories
        assert restored.prompts[prompt_id].header == prompt.header
        assert restored.prompts[prompt_id].last_draw == prompt.last_draw
    assert restored.counters == buffer.counters
    assert restored.samples_per_insert == buffer.samples_per_insert > 0


def test_empty_buffer_survives(tmp_path: Path):
    save_buffer(ReplayBuffer(capacity=10, capacity_per_prompt=5), tmp_path)
    assert len(load(tmp_path)) == 0


def test_saving_leaves_the_buffer_as_it_was_and_is_repeatable(tmp_path: Path):
    buffer = make_buffer()
    save_buffer(buffer, tmp_path / "a")
    save_buffer(buffer, tmp_path / "b")
    save_buffer(load(tmp_path / "a"), tmp_path / "c")
    for name in (DATA_NAME, STATE_NAME):
        assert len({(tmp_path / part / name).read_bytes() for part in "abc"}) == 1


def test_smaller_capacity_says_how_many_were_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_buffer(make_buffer(), tmp_path)
    with caplog.at_level(logging.WARNING):
        restored = load(tmp_path, capacity=7)
    assert len(restored) == 7
    assert restored.versions == {2: 2, 3: 5}
    assert "num_evicted=13" in caplog.text


@pytest.mark.parametrize("name", [DATA_NAME, STATE_NAME])
def test_missing_file_is_a_checkpoint_error(tmp_path: Path, name: str):
    save_buffer(make_buffer(), tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: unreadable"):
        load(tmp_path)


@pytest.mark.parametrize("name", [DATA_NAME, STATE_NAME])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_truncated_file_is_a_checkpoint_error(tmp_path: Path, name: str, kept: float):
    save_buffer(make_buffer(), tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(kept * len(data))])
    with pytest.raises(CheckpointError, match=name):
        load(tmp_path)


def test_flipped_byte_anywhere_in_the_data_is_a_checkpoint_error(tmp_path: Path):
    save_buffer(make_buffer(), tmp_path)
    data = (tmp_path / DATA_NAME).read_bytes()
    for offset in range(0, len(data), 17):
        (tmp_path / DATA_NAME).write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(CheckpointError, match="damaged or incomplete"):
            load(tmp_path)


def test_files_of_two_snapshots_do_not_mix(tmp_path: Path):
    save_buffer(make_buffer(), tmp_path)
    state = json.loads((tmp_path / STATE_NAME).read_bytes())
    state["urn"][0] = 77
    (tmp_path / STATE_NAME).write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="do not belong together"):
        load(tmp_path)


def test_other_layout_is_a_checkpoint_error_that_says_so(tmp_path: Path):
    save_buffer(make_buffer(), tmp_path)
    (tmp_path / STATE_NAME).write_text(json.dumps({"layout_version": 99, "other": 1}))
    with pytest.raises(CheckpointError, match=f"layout 99; this tbactl reads {LAYOUT_VERSION}"):
        load(tmp_path)


def test_fields_in_snapshots_are_those_of_the_layout_version():
    """When this fails, StoredTrajectory changed: raise snapshot.LAYOUT_VERSION, then pin the new fields here."""
    assert LAYOUT_VERSION == 1
    assert StoredTrajectory.__struct_fields__ == (
        "uid",
        "prompt_id",
        "token_ids",
        "logprobs",
        "text",
        "finish_reason",
        "first_version",
        "last_version",
        "reward",
        "insert_number",
        "num_draws",
    )


def test_random_generator_goes_on_after_json():
    rng = np.random.default_rng(3)
    rng.integers(10, size=3)
    restored = rng_state_from_json(json.loads(json.dumps(rng_state_to_json(rng))))
    assert restored.random(5).tolist() == rng.random(5).tolist()


@pytest.mark.parametrize("state", [{}, {"bit_generator": "MT19937"}, None, [1, 2]])
def test_foreign_random_state_is_a_checkpoint_error(state: object):
    with pytest.raises(CheckpointError, match="random generator"):
        rng_state_from_json(state)

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from tbactl.errors import CheckpointError
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.columns import NUMBERS
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


@pytest.mark.fault("I-49")
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


def test_prompt_of_several_records_survives_with_its_blocks(tmp_path: Path):
    buffer = ReplayBuffer(capacity=10_000, capacity_per_prompt=10_000)
    buffer.insert(make_group(1, range(3), version=1))
    for start in range(0, 2500, 20):
        buffer.insert(make_group(2, range(start, start + 20), version=start % 3))
    buffer.insert(make_group(3, range(3), version=1))
    save_buffer(buffer, tmp_path)
    restored = load(tmp_path, capacity=10_000, capacity_per_prompt=10_000)
    assert list(restored.prompts) == [1, 2, 3]
    assert list(restored.trajectories()) == list(buffer.trajectories())
    sizes = [[len(block) for block in b.prompts[2].ages.blocks] for b in (buffer, restored)]
    assert sizes[0] == sizes[1]
    sampler = MixtureSampler(on_policy_fraction=0.3, prioritization="reward-softmax")
    drawn = [
        sampler.select(b, num_prompts=3, num_per_prompt=40, policy_version=3, rng=np.random.default_rng(1))
        for b in (buffer, restored)
    ]
    assert drawn[0] == drawn[1]


def test_residuals_survive(tmp_path: Path):
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    buffer.insert(make_group(1, range(3)))
    [group] = MixtureSampler(on_policy_fraction=0.0).select(
        buffer, num_prompts=1, num_per_prompt=2, policy_version=0, rng=np.random.default_rng(0)
    )
    buffer.note_residuals({group.trajectories[0].uid: 0.0, group.trajectories[1].uid: -1.5})
    save_buffer(buffer, tmp_path)
    restored = load(tmp_path)
    residuals = [stored.residual for stored in restored.trajectories()]
    assert residuals == [stored.residual for stored in buffer.trajectories()]
    assert set(residuals) == {None, 0.0, -1.5}


def test_buffer_that_evicts_by_reward_goes_on_so(tmp_path: Path):
    buffer = ReplayBuffer(capacity=4, capacity_per_prompt=3, eviction="lowest-reward")
    buffer.insert(make_group(1, [0, 1], rewards=[0.3, 0.1]))
    buffer.insert(make_group(2, [0, 1], rewards=[0.2, 0.4]))
    save_buffer(buffer, tmp_path)
    restored = load_buffer(tmp_path, capacity=4, capacity_per_prompt=3, eviction="lowest-reward")
    restored.insert(make_group(3, [0, 1], rewards=[0.5, 0.6]))
    assert sorted(restored.rewards) == [0.3, 0.4, 0.5, 0.6]


def test_snapshot_whose_orders_say_true_and_false_for_fresh_is_read(tmp_path: Path):
    buffer = make_buffer()
    save_buffer(buffer, tmp_path)
    state = json.loads((tmp_path / STATE_NAME).read_text())
    state["recency"] = [[bool(rank), version, prompt_ids] for rank, version, prompt_ids in state["recency"]]
    (tmp_path / STATE_NAME).write_text(json.dumps(state))
    assert load(tmp_path).recency.dump() == buffer.recency.dump()


def test_equal_rewards_that_come_last_from_a_resume_on_do_so(tmp_path: Path):
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=10)
    buffer.insert(make_group(1, range(2), version=1, rewards=[1.0, 1.0]))
    buffer.insert(make_group(2, range(2), version=0, rewards=[1.0, 0.0]))
    save_buffer(buffer, tmp_path)
    restored = load_buffer(tmp_path, capacity=100, capacity_per_prompt=10, equal_rewards_last=True)
    assert [prompt_ids for _, _, prompt_ids in restored.recency.dump()] == [[1], [2]]


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


@pytest.mark.fault("I-51")
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


def test_columns_in_snapshots_are_those_of_the_layout_version():
    """When this fails, what is written changed: raise snapshot.LAYOUT_VERSION, then pin the new columns here."""
    assert LAYOUT_VERSION == 2
    assert "".join(f"{name}:{code} " for name, code in NUMBERS.items()) == (
        "reward:d residual:d insert_number:q first_version:i num_draws:i "
    )


@pytest.mark.fault("I-56")
def test_random_generator_goes_on_after_json():
    rng = np.random.default_rng(3)
    rng.integers(10, size=3)
    restored = rng_state_from_json(json.loads(json.dumps(rng_state_to_json(rng))))
    assert restored.random(5).tolist() == rng.random(5).tolist()


@pytest.mark.parametrize("state", [{}, {"bit_generator": "MT19937"}, None, [1, 2]])
def test_foreign_random_state_is_a_checkpoint_error(state: object):
    with pytest.raises(CheckpointError, match="random generator"):
        rng_state_from_json(state)

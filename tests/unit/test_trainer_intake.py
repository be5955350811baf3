from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.ipc.codec import encode
from tbactl.ipc.ring import RingWriter, create_ring
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import rng_state_to_json
from tbactl.trainer.intake import Intake
from tests.support.replay_groups import make_group


@pytest.fixture
def state():
    return TrainerState(sampler_rng=rng_state_to_json(np.random.default_rng(0)), stream_positions=[0, 0])


@pytest.fixture
def rings(tmp_path):
    paths = [tmp_path / "ring-0", tmp_path / "ring-1"]
    for path in paths:
        create_ring(path, capacity_bytes=1 << 16)
    return paths


@pytest.fixture
def intake(rings, state):
    intake = Intake.open(rings, buffer=ReplayBuffer(capacity=100, capacity_per_prompt=10), state=state)
    yield intake
    intake.close()


def write(path, *payloads):
    with RingWriter.open(path) as ring:
        for payload in payloads:
            assert ring.try_write(payload)


def test_intake_fresh_metrics_count_repeated_completions_that_the_buffer_drops(rings, intake, state):
    write(rings[0], encode(make_group(1, [7, 7, 7, 8], rewards=[1.0, 1.0, 1.0, 0.0])))
    assert intake.drain() == 1
    assert intake.take_fresh_metrics() == {
        "intake/reward/mean": 0.75,
        "intake/completion_tokens/mean": 1.0,
        "intake/duplicates/share": 0.5,
    }
    assert intake.take_fresh_metrics() == {}
    assert state.total("trajectories_received") == 4


def test_intake_keeps_each_searchers_place_among_the_prompts(rings, intake, state):
    write(rings[0], encode(replace(make_group(1, [1, 2]), stream_position=4)))
    write(rings[1], encode(replace(make_group(2, [1, 2]), searcher=1, stream_position=7)))
    intake.drain()
    assert state.stream_positions == [4, 7]


def test_intake_counts_a_record_it_cannot_read_and_goes_on(rings, intake):
    write(rings[0], b"not a record", encode(make_group(1, [1, 2])))
    assert intake.drain() == 1
    assert intake.num_damaged == 1


def test_intake_refuses_a_group_of_a_searcher_that_does_not_exist(rings, intake):
    write(rings[0], encode(replace(make_group(1, [1, 2]), searcher=5)))
    assert intake.drain() == 0
    assert intake.num_damaged == 1

"""The checksums that `benchmarks.bit_exact_resume` compares: each changes with what belongs to its part alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.utils.tensor_fragment import fragment_address

from benchmarks.resume_digest import PARTS, _flat, digests
from tbactl.checkpoints.store import CheckpointStore
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.replay.packing import pack_trajectory, unpack_trajectory
from tbactl.replay.snapshot import load_buffer, save_buffer
from tests.support.scripted_run import SYNC_MODE, ScriptedRun


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = ScriptedRun(tmp_path_factory.mktemp("run"), **SYNC_MODE)
    run.run()
    return run.config.layout.root


def changed(finished, tmp_path, change):
    """Digests of the run after a change of its last checkpoint, sealed anew, or of its metrics."""
    copy = RunLayout(tmp_path / "copy")
    shutil.copytree(finished, copy.root, symlinks=True)
    with CheckpointStore(copy, keep_last=9).writing(step=6) as checkpoint:
        shutil.copytree(copy.checkpoint(6), checkpoint.root, dirs_exist_ok=True)
        change(copy, checkpoint)
    return digests(copy.root, step=6)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def change_weights(_, checkpoint: CheckpointLayout):
    flip(next(checkpoint.policy.glob("*.safetensors")))


def change_optimizer(_, checkpoint: CheckpointLayout):
    flip(checkpoint.learner / "fake_learner.safetensors")


def change_buffer(_, checkpoint: CheckpointLayout):
    buffer = load_buffer(checkpoint.replay, capacity=400, capacity_per_prompt=100)
    buffer.columns.residual[0] = 0.125
    save_buffer(buffer, checkpoint.replay)


def change_state(_, checkpoint: CheckpointLayout):
    state = json.loads(checkpoint.trainer_state.read_bytes())
    state["stream_positions"][0] += 1
    checkpoint.trainer_state.write_text(json.dumps(state))


def change_metrics(layout: RunLayout, _):
    lines = [json.loads(line) for line in layout.metrics.read_text().splitlines()]
    lines[2]["metrics"]["objective/loss/mean"] += 1e-12
    layout.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


CHANGES = {
    "weights": change_weights,
    "optimizer": change_optimizer,
    "buffer": change_buffer,
    "state": change_state,
    "metrics": change_metrics,
}


@pytest.mark.parametrize("part", PARTS)
def test_digest_shows_the_change_of_its_own_part_alone(finished, tmp_path, part):
    before = digests(finished, step=6)
    after = changed(finished, tmp_path, CHANGES[part])
    assert {name for name in PARTS if before[name] != after[name]} == {part}


def change_what_differs_between_lives(layout: RunLayout, checkpoint: CheckpointLayout):
    state = json.loads(checkpoint.trainer_state.read_bytes())
    checkpoint.trainer_state.write_text(json.dumps(state | {"training_s": 1e6}))
    undone = layout.metrics.read_text().splitlines()[3].replace('"metrics":{', '"metrics":{"objective/x/mean":1.0,')
    lines = [json.loads(line) for line in layout.metrics.read_text().splitlines()]
    for line in lines:
        line["metrics"] |= {"trainer/step_s/sum": 9.0, "searcher/tokens_per_s/sum": 9.0, "trainer/idle/share": 0.5}
    layout.metrics.write_text(undone + "\n" + "".join(json.dumps(line) + "\n" for line in lines))


def test_digest_leaves_out_times_and_undone_steps(finished, tmp_path):
    assert changed(finished, tmp_path, change_what_differs_between_lives) == digests(finished, step=6)


def test_digest_of_tensors_takes_values_types_and_names_but_not_their_place_in_memory(finished, tmp_path):
    whole = torch.arange(6, dtype=torch.float32)
    states = [
        {"step": 3, "moment": whole[2:4].clone(), "half": whole[:2].bfloat16()},
        {"step": 3, "moment": whole[2:4], "half": whole[:2].bfloat16()},
        {"step": 4, "moment": whole[2:4], "half": whole[:2].bfloat16()},
        {"step": 3, "moment": whole[2:4], "half": whole[:2].bfloat16() + 1},
        {"step": 3, "moment": whole[2:4].double(), "half": whole[:2].bfloat16()},
        {"step": 3, "other": whole[2:4], "half": whole[:2].bfloat16()},
    ]

    def digest_of(number):
        def add(_, checkpoint: CheckpointLayout):
            torch.save(states[number], checkpoint.learner / "optim_states.pt")

        return changed(finished, tmp_path / str(number), add)["optimizer"]

    first, same, *others = [digest_of(number) for number in range(len(states))]
    assert first == same
    assert len({first, *others}) == 5


def test_digest_takes_in_what_torch_may_load_and_refuses_what_it_does_not_know():
    scalers = [LossScaler(scale) for scale in (1, 2)]
    ones, twos = (list(_flat({"scaler": scaler, "at": fragment_address(3, 1)}, path="")) for scaler in scalers)
    assert ones != twos and any("fragment_address/start 1" in line for line in ones)
    with pytest.raises(TypeError, match="/odd/0: the digest does not know what a set holds"):
        list(_flat({"odd": [{1}]}, path=""))


def change_uids(_, checkpoint: CheckpointLayout):
    buffer = load_buffer(checkpoint.replay, capacity=400, capacity_per_prompt=100)
    data = buffer.columns.data
    for slot, packed in enumerate(data):
        trajectory = unpack_trajectory(packed)
        data[slot] = pack_trajectory(replace(trajectory, uid=trajectory.uid + 2**30))
    save_buffer(buffer, checkpoint.replay)


def test_digest_leaves_out_which_life_of_a_searcher_made_a_trajectory(finished, tmp_path):
    assert changed(finished, tmp_path, change_uids) == digests(finished, step=6)

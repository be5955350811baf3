from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from tbactl.checkpoints import manifest
from tbactl.checkpoints.manifest import read_manifest, verify
from tbactl.checkpoints.store import CheckpointStore, usable_checkpoint
from tbactl.checkpoints.trainer_state import TrainerState, read_trainer_state, write_trainer_state
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.errors import CapacityError, CheckpointError


@pytest.fixture
def layout(tmp_path):
    return RunLayout(tmp_path)


def write(layout, step, *, keep_last=10, content="weights"):
    with CheckpointStore(layout, keep_last=keep_last).writing(step=step) as checkpoint:
        checkpoint.policy.mkdir()
        (checkpoint.policy / "model.safetensors").write_text(f"{content} {step}")
        (checkpoint.root / "trainer_state.json").write_text("{}")
    return layout.checkpoint(step)


def names(layout):
    return sorted(os.listdir(layout.checkpoints))


def test_writing_makes_a_verified_checkpoint_and_latest(layout):
    checkpoint = write(layout, 10)

    assert names(layout) == ["latest", "step_000010"]
    assert layout.latest_checkpoint.resolve() == checkpoint
    assert os.readlink(layout.latest_checkpoint) == "step_000010", "relative, so that a run can be moved"
    verified = verify(checkpoint)
    assert verified.step == 10
    assert [entry.path for entry in verified.files] == ["policy/model.safetensors", "trainer_state.json"]


def test_writing_that_fails_leaves_the_last_checkpoint_as_latest(layout):
    write(layout, 10)
    with (
        pytest.raises(CheckpointError, match=r"step_000020: out of luck\. Earlier"),
        CheckpointStore(layout, keep_last=2).writing(step=20) as checkpoint,
    ):
        (checkpoint.root / "half").write_text("x")
        raise RuntimeError("out of luck")

    assert names(layout) == ["latest", "step_000010"]
    assert layout.latest_checkpoint.resolve().name == "step_000010"


def test_writing_on_a_full_disk_is_a_capacity_error(layout):
    with (
        pytest.raises(CapacityError, match="Free some disk space"),
        CheckpointStore(layout, keep_last=2).writing(step=1),
    ):
        raise OSError(28, "No space left on device")


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "num_free", "expected"),
    [
        (SafetensorError(f"I/O error: {FULL}"), 10**9, CapacityError),
        (RuntimeError("file write failed"), 4096, CapacityError),
        (RuntimeError("file write failed"), 10**9, CheckpointError),
        (PermissionError(13, "Permission denied"), 10**9, CheckpointError),
        (AssertionError("ours"), 10**9, AssertionError),
        (CheckpointError("the export differs"), 10**9, CheckpointError),
    ],
    ids=["safetensors", "torch, full", "torch, not full", "permission", "a mistake of ours", "an error of ours"],
)
def test_writing_that_fails_is_a_capacity_error_only_on_a_full_disk(layout, monkeypatch, error, num_free, expected):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=num_free))
    with pytest.raises(expected) as caught, CheckpointStore(layout, keep_last=2).writing(step=1):
        raise error
    assert type(caught.value) is expected
    assert caught.value is error or caught.value.__cause__ is error
    assert ("disk space" in str(caught.value)) == (expected is CapacityError)


def test_writing_into_a_directory_that_vanishes_is_a_checkpoint_error(layout):
    with (
        pytest.raises(CheckpointError, match="No such file"),
        CheckpointStore(layout, keep_last=2).writing(step=1) as checkpoint,
    ):
        shutil.rmtree(layout.root)
        (checkpoint.root / "file").write_text("x")


def test_writing_after_a_death_between_link_and_rename_replaces_the_link(layout):
    checkpoint = write(layout, 10)
    (layout.checkpoints / ".latest.tmp").symlink_to(checkpoint.name)
    write(layout, 20)
    assert layout.latest_checkpoint.resolve().name == "step_000020"
    verify(layout.checkpoint(10))


@pytest.mark.fault("I-59")
@pytest.mark.parametrize("moment", ["writing", "sealing", "before the link"])
def test_process_killed_while_writing_never_leaves_latest_at_a_half_written_one(layout, moment):
    write(layout, 10)
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from tbactl.checkpoints import store
        from tbactl.config.layout import RunLayout

        def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
        moment = sys.argv[2]
        if moment == "sealing":
            store.make_manifest = die
        if moment == "before the link":
            Path.symlink_to = die
        with store.CheckpointStore(RunLayout(Path(sys.argv[1])), keep_last=2).writing(step=20) as checkpoint:
            (checkpoint.root / "file").write_text("x" * 100)
            if moment == "writing":
                die()
        """
    )
    outcome = subprocess.run([sys.executable, "-c", script, str(layout.root), moment], check=False)

    assert outcome.returncode == -9
    assert layout.latest_checkpoint.resolve().name == "step_000010"
    verify(layout.latest_checkpoint)
    write(layout, 30)
    assert not [name for name in names(layout) if name.startswith(".")], "what was left over is removed"
    assert layout.latest_checkpoint.resolve().name == "step_000030"


def test_keep_last_removes_older_ones(layout):
    for step in (5, 10, 15):
        write(layout, step, keep_last=2)
    assert names(layout) == ["latest", "step_000010", "step_000015"]


def write_with(store, layout, steps):
    for step in steps:
        with store.writing(step=step) as checkpoint:
            (checkpoint.root / "trainer_state.json").write_text("{}")


def test_keep_every_keeps_those_steps_for_good_beside_the_newest(layout):
    write_with(CheckpointStore(layout, keep_last=2, keep_every=20), layout, range(5, 66, 5))
    assert names(layout) == ["latest", "step_000020", "step_000040", "step_000060", "step_000065"]
    assert layout.latest_checkpoint.resolve().name == "step_000065"


def test_keep_every_counts_those_among_the_newest_as_newest(layout):
    write_with(CheckpointStore(layout, keep_last=3, keep_every=10), layout, range(5, 31, 5))
    assert names(layout) == ["latest", "step_000010", "step_000020", "step_000025", "step_000030"]


@pytest.mark.parametrize("keep_every", [0, 7])
def test_latest_is_never_removed_not_even_by_newer_ones_of_an_undone_future(layout, keep_every):
    store = CheckpointStore(layout, keep_last=1, keep_every=keep_every)
    write_with(store, layout, [30])
    write_with(store, layout, [5])
    assert layout.latest_checkpoint.resolve().name == "step_000005"
    verify(layout.latest_checkpoint)


def test_steps_are_ordered_by_number_also_beyond_six_digits(layout):
    write_with(CheckpointStore(layout, keep_last=2), layout, [999_990, 1_000_000, 1_000_010])
    assert names(layout) == ["latest", "step_1000000", "step_1000010"]
    assert usable_checkpoint(layout.checkpoints).name == "step_1000010"


def test_what_was_staged_is_no_checkpoint_until_it_is_completed(layout):
    write(layout, 10)
    store = CheckpointStore(layout, keep_last=1)
    with store.staging(step=20) as checkpoint:
        (checkpoint.root / "trainer_state.json").write_text("{}")
    assert layout.latest_checkpoint.resolve().name == "step_000010"
    assert usable_checkpoint(layout.checkpoints).name == "step_000010"
    store.complete(step=20)
    assert names(layout) == ["latest", "step_000020"]
    verify(layout.latest_checkpoint)


def test_completing_that_fails_leaves_the_one_before_and_nothing_half_done(layout, monkeypatch):
    write(layout, 10)
    store = CheckpointStore(layout, keep_last=1)
    with store.staging(step=20) as checkpoint:
        (checkpoint.root / "trainer_state.json").write_text("{}")

    def full(_):
        raise FULL

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CapacityError, match="Free some disk space"):
        store.complete(step=20)
    assert names(layout) == ["latest", "step_000010"]


def test_writing_a_step_again_replaces_it(layout):
    write(layout, 5, content="undone")
    checkpoint = write(layout, 5, content="new")
    assert (checkpoint / "policy" / "model.safetensors").read_text() == "new 5"
    verify(checkpoint)
    assert names(layout) == ["latest", "step_000005"]


def damage_missing(checkpoint):
    (checkpoint / "policy" / "model.safetensors").unlink()


def damage_truncated(checkpoint):
    path = checkpoint / "policy" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def damage_flipped(checkpoint):
    path = checkpoint / "policy" / "model.safetensors"
    path.write_bytes(b"X" + path.read_bytes()[1:])


def damage_no_manifest(checkpoint):
    CheckpointLayout(checkpoint).manifest.unlink()


def damage_manifest(checkpoint):
    CheckpointLayout(checkpoint).manifest.write_text('{"layout_version": 1')


@pytest.mark.fault("I-59")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_missing, "model.safetensors: missing"),
        (damage_truncated, "model.safetensors: 8 bytes instead of 9"),
        (damage_flipped, "model.safetensors: its content does not fit"),
        (damage_no_manifest, "no manifest.json"),
        (damage_manifest, "manifest.json: damaged"),
    ],
)
def test_verify_damaged_checkpoint_names_the_file(layout, damage, words):
    checkpoint = write(layout, 1)
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=words):
        verify(checkpoint)


def test_verify_other_layout_says_so(layout):
    checkpoint = write(layout, 1)
    path = CheckpointLayout(checkpoint).manifest
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layout_version": 99}))
    with pytest.raises(CheckpointError, match="layout 99"):
        read_manifest(checkpoint)


def test_verify_part_ignores_damage_elsewhere(layout):
    checkpoint = write(layout, 1)
    (checkpoint / "trainer_state.json").write_text("damaged")
    verify(checkpoint, part="policy")
    with pytest.raises(CheckpointError, match=r"trainer_state\.json"):
        verify(checkpoint)


def test_verify_refuses_a_link_that_leads_out_and_follows_one_that_stays(layout):
    checkpoint = write(layout, 1)
    model = checkpoint / "policy" / "model.safetensors"
    model.rename(checkpoint / "moved")
    model.symlink_to(checkpoint / "moved")
    verify(checkpoint)
    model.unlink()
    (checkpoint / "moved").rename(layout.root / "moved")
    model.symlink_to(layout.root / "moved")
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        verify(checkpoint)


@pytest.mark.fault("I-59")
def test_usable_checkpoint_damaged_falls_back_to_the_one_before_and_says_so(layout, caplog):
    for step in (1, 2, 3):
        write(layout, step)
    damage_truncated(layout.checkpoint(3))
    damage_missing(layout.checkpoint(2))

    assert usable_checkpoint(layout.latest_checkpoint) == layout.checkpoint(1)
    assert "step_000003 cannot be used" in caplog.text
    assert "step_000001 is used instead" in caplog.text


def test_usable_checkpoint_never_goes_beyond_the_one_asked_for(layout):
    for step in (1, 2, 3):
        write(layout, step)
    assert usable_checkpoint(layout.checkpoint(2)) == layout.checkpoint(2)
    assert usable_checkpoint(layout.checkpoints) == layout.checkpoint(3)


def test_usable_checkpoint_all_damaged_names_each(layout):
    for step in (1, 2):
        write(layout, step)
        damage_missing(layout.checkpoint(step))
    with pytest.raises(CheckpointError, match=r"(?s)step_000002.*step_000001"):
        usable_checkpoint(layout.latest_checkpoint)


def test_forget_after_removes_later_steps(layout):
    for step in (5, 10, 100):
        write(layout, step)
    CheckpointStore(layout, keep_last=2).forget_after(5)
    assert names(layout) == ["latest", "step_000005"]
    assert layout.latest_checkpoint.resolve() == layout.checkpoint(5)


def test_verify_file_that_vanishes_meanwhile_is_a_checkpoint_error(layout, monkeypatch):
    checkpoint = write(layout, 1)

    def vanished(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(manifest, "checksum", vanished)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        verify(checkpoint)


def state(**fields):
    return TrainerState(sampler_rng={"state": 2**127}, stream_positions=[3, 4], **fields)


@pytest.mark.fault("I-58")
def test_trainer_state_round_trip_is_exact(tmp_path):
    checkpoint = CheckpointLayout(tmp_path)
    written = state(policy_version=7, training_s=0.1 + 0.2, counters={"a": 2**60})
    write_trainer_state(checkpoint, written)
    assert read_trainer_state(tmp_path) == written


@pytest.mark.parametrize("text", ["", "[]", '{"layout_version": 1}', '{"layout_version": 2}', '{"layout_version"'])
def test_trainer_state_damaged_is_a_checkpoint_error(tmp_path, text):
    CheckpointLayout(tmp_path).trainer_state.write_text(text)
    with pytest.raises(CheckpointError, match=r"trainer_state\.json"):
        read_trainer_state(tmp_path)


def test_trainer_state_counts(tmp_path):
    counted = state()
    counted.count(a=2, b=1)
    counted.count(a=3)
    assert (counted.total("a"), counted.total("b"), counted.total("c")) == (5, 1, 0)

from __future__ import annotations

import dataclasses
import errno
import logging
import math
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tbactl.clock import FakeClock
from tbactl.errors import CapacityError, ChildFailedError
from tbactl.protocols import ProbeBatch
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import held_file, published_versions, read_description, weights_path
from tbactl.weight_sync.publisher import publish, publish_copy
from tbactl.weight_sync.subscriber import Subscriber, max_difference
from tbactl.weight_sync.weights_file import (
    check_shapes,
    copy_into,
    mapped_weights,
    shapes_of,
    write_safetensors,
)

PROBE = ProbeBatch(sequences=(((1, 2, 3), 1),))


class StubEngine:
    """Holds one number; scores every token of a probe with it."""

    def __init__(self):
        self.policy_version = 0
        self.value = 0.0

    def load_policy(self, weights: Path, *, version: int) -> str:
        print_of = fingerprint(weights)
        with mapped_weights(weights) as (_, tensors):
            self.value = float(dict(tensors)["w"][0])
        self.policy_version = version
        return print_of

    def sequence_logprobs(self, sequences):
        return [(self.value,) * (len(ids) - start) for ids, start in sequences]


def publish_value(directory: Path, version: int, value: float, *, claimed: float | None = None):
    return publish(
        directory,
        version=version,
        write=lambda path: write_safetensors(path, {"w": torch.tensor([value])}),
        probe=PROBE,
        probe_logprobs=[(value if claimed is None else claimed,) * 2],
    )


def subscriber(directory: Path) -> Subscriber:
    return Subscriber(directory, policy_directory=directory / "none", max_logprob_difference=1e-3, clock=FakeClock())


def test_published_weights_arrive_with_version_and_fingerprint(tmp_path):
    published = publish_value(tmp_path / "weights", 7, -0.5)
    reader = subscriber(tmp_path / "weights")
    engine = StubEngine()
    newest = reader.newest()
    assert newest == published
    report = reader.load(newest, engine=engine)
    assert (engine.policy_version, engine.value) == (7, -0.5)
    assert (report.version, report.fingerprint, report.alarms) == (7, published.fingerprint, ())
    assert report.max_logprob_difference == 0.0


def test_files_are_private_and_read_only(tmp_path):
    directory = tmp_path / "weights"
    publish_value(directory, 1, 0.0)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(weights_path(directory, 1).stat().st_mode) == 0o400


def test_only_two_versions_are_kept(tmp_path):
    for version in (1, 2, 5, 9):
        publish_value(tmp_path, version, float(version))
    assert published_versions(tmp_path) == [5, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"policy-v{version:08d}.{ending}" for version in (5, 9) for ending in ("json", "safetensors")
    )


@pytest.mark.fault("I-02")
def test_unwritten_version_is_never_visible(tmp_path):
    publish_value(tmp_path, 1, 1.0)

    def half(path: Path) -> None:
        path.write_bytes(b"half")
        assert published_versions(tmp_path) == [1]
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        publish(tmp_path, version=2, write=half, probe=PROBE, probe_logprobs=[(0.0, 0.0)])
    newest = subscriber(tmp_path).newest()
    assert newest is not None and newest.version == 1
    assert not list(tmp_path.glob("*partial*"))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device")])
def test_full_file_system_is_a_capacity_error(tmp_path, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(CapacityError, match="no room for policy version 3"):
        publish(tmp_path, version=3, write=write, probe=PROBE, probe_logprobs=[(0.0, 0.0)])


def test_subscriber_sees_nothing_before_the_first_version(tmp_path):
    assert subscriber(tmp_path / "none").newest() is None
    assert subscriber(tmp_path).find(3) is None


def test_version_removed_before_it_was_read_is_not_an_error(tmp_path):
    published = publish_value(tmp_path, 1, 1.0)
    weights_path(tmp_path, 1).unlink()
    assert subscriber(tmp_path).load(published, engine=StubEngine()) is None


@pytest.mark.fault("R-08")
def test_mapped_file_survives_its_removal(tmp_path):
    publish_value(tmp_path, 1, 1.0)
    with mapped_weights(weights_path(tmp_path, 1)) as (_, tensors):
        for version in (2, 3, 4):
            publish_value(tmp_path, version, 0.0)
        assert dict(tensors)["w"].tolist() == [1.0]


@pytest.mark.fault("I-18")
def test_alarm_when_the_file_is_not_the_published_one(tmp_path, caplog):
    published = publish_value(tmp_path, 1, 1.0)
    path = weights_path(tmp_path, 1)
    path.chmod(0o600)
    write_safetensors(path, {"w": torch.tensor([1.0 + 1e-6])})
    report = subscriber(tmp_path).load(published, engine=StubEngine())
    assert report is not None and len(report.alarms) == 1 and "fingerprint" in report.alarms[0]
    assert "alarm" in caplog.text


def test_copy_on_another_machine_is_compared_with_what_the_trainer_described(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    published = publish_value(here, 1, 1.0)
    data = bytearray(weights_path(here, 1).read_bytes())
    publish_copy(there, published, write=lambda path: write_bytes(path, data))
    assert read_description(there, 1) == published
    report = subscriber(there).load(published, engine=StubEngine())
    assert report is not None and report.alarms == ()
    data[-1] ^= 1
    publish_copy(there, dataclasses.replace(published, version=2), write=lambda path: write_bytes(path, data))
    damaged = read_description(there, 2)
    assert damaged is not None
    report = subscriber(there).load(damaged, engine=StubEngine())
    assert report is not None and any("fingerprint" in alarm for alarm in report.alarms)


def write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.fault("I-19")
def test_alarm_when_weights_never_change(tmp_path):
    reader, engine = subscriber(tmp_path), StubEngine()
    for version, value in ((1, 1.0), (2, 1.0), (3, 2.0)):
        report = reader.load(publish_value(tmp_path, version, value), engine=engine)
        assert report is not None
        assert [("identical" in alarm) for alarm in report.alarms] == ([True] if version == 2 else [])


@pytest.mark.fault("I-18")
@pytest.mark.parametrize("claimed", [1.1, math.nan, math.inf])
def test_alarm_when_logprobs_differ(tmp_path, claimed, caplog):
    caplog.set_level(logging.ERROR)
    published = publish_value(tmp_path, 1, 1.0, claimed=claimed)
    report = subscriber(tmp_path).load(published, engine=StubEngine())
    assert report is not None and len(report.alarms) == 1
    assert "log-probs differ" in report.alarms[0]


def test_difference_is_the_largest_and_infinite_for_unequal_lengths():
    assert max_difference([(1.0, 2.0), (3.0,)], [(1.0, 2.25), (2.5,)]) == 0.5
    assert max_difference([(1.0,)], [(1.0, 2.0)]) == math.inf
    assert max_difference([], []) == 0.0


def test_description_round_trips(tmp_path):
    published = publish_value(tmp_path, 12, 0.25)
    assert read_description(tmp_path, 12) == published
    assert published.probe == PROBE.sequences


@pytest.mark.fault("I-22")
def test_tied_parameters_are_written_out(tmp_path):
    embedding = torch.nn.Embedding(5, 3)
    head = torch.nn.Linear(3, 5, bias=False)
    head.weight = embedding.weight
    model = torch.nn.ModuleDict({"embed": embedding, "lm_head": head})
    write_safetensors(tmp_path / "w", model.state_dict())
    loaded = load_file(tmp_path / "w")
    assert set(loaded) == {"embed.weight", "lm_head.weight"}
    assert torch.equal(loaded["embed.weight"], loaded["lm_head.weight"])


def test_views_are_written_as_what_they_show(tmp_path):
    whole = torch.arange(12.0).reshape(4, 3)
    write_safetensors(tmp_path / "w", {"a": whole[:2], "b": whole[2:], "c": whole.t()})
    loaded = load_file(tmp_path / "w")
    assert torch.equal(loaded["a"], whole[:2]) and torch.equal(loaded["b"], whole[2:])
    assert torch.equal(loaded["c"], whole.t())


def test_fingerprint_depends_on_values_names_and_nothing_else(tmp_path):
    def of(state):
        write_safetensors(tmp_path / "w", state)
        return fingerprint(tmp_path / "w")

    base = {"a": torch.zeros(3), "b": torch.ones(2)}
    assert of(base) == of({"b": torch.ones(2), "a": torch.zeros(3)})
    assert len({of(base), of(base | {"a": torch.full((3,), 1e-30)}), of({"a": base["a"], "c": base["b"]})}) == 3


@pytest.mark.fault("I-22")
def test_shapes_must_fit_exactly():
    expected = {"a": (2, 3), "b": (4,)}
    check_shapes(Path("w"), found=dict(expected), expected=expected)
    for found, complaint in (
        ({"a": (2, 3)}, "b is missing"),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, "c is unknown"),
        ({"a": (3, 2), "b": (4,)}, r"a has shape \[3, 2\] instead of \[2, 3\]"),
    ):
        with pytest.raises(ChildFailedError, match=complaint):
            check_shapes(Path("w"), found=found, expected=expected)


def test_copy_into_casts(tmp_path):
    write_safetensors(tmp_path / "w", {"a": torch.tensor([1.5, 2.5])})
    target = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    with mapped_weights(tmp_path / "w") as (shapes, tensors):
        assert shapes == shapes_of(target)
        copy_into(target, tensors)
    assert target["a"].tolist() == [1.5, 2.5]


def test_held_file_can_be_looked_at_again_after_its_removal(tmp_path):
    published = publish_value(tmp_path, 1, 1.0)
    path = weights_path(tmp_path, 1)
    with held_file(path) as held:
        path.unlink()
        for _ in range(2):
            assert fingerprint(held) == published.fingerprint
            with mapped_weights(held) as (_, tensors):
                assert dict(tensors)["w"].tolist() == [1.0]
    with pytest.raises(FileNotFoundError), held_file(path):
        pass

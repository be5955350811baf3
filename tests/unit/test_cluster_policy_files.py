"""The policy on a node: seen there, kept from before, or sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbactl.cluster.policy_files import PolicyFiles, policy_listing
from tbactl.errors import ChildFailedError


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    directory = tmp_path / "policy"
    directory.mkdir()
    (directory / "config.json").write_bytes(b"{}")
    (directory / "model.safetensors").write_bytes(bytes(range(256)))
    (directory / "empty").touch()
    return directory


def send(files: PolicyFiles, policy: Path) -> None:
    for path in policy.iterdir():
        if files.directory is None:
            files.take(path.name, memoryview(path.read_bytes()))


def test_policy_that_the_node_sees_is_used_where_it_is(policy: Path, tmp_path: Path):
    assert PolicyFiles(policy, listing=policy_listing(policy), cache=tmp_path / "cache").directory == policy


def test_hub_name_is_passed_on():
    assert PolicyFiles(Path("some/policy"), listing={}).directory == Path("some/policy")


def test_other_files_under_the_same_name_are_not_taken_for_the_policy(policy: Path, tmp_path: Path):
    listing = policy_listing(policy)
    (policy / "model.safetensors").write_bytes(bytes(256))
    assert PolicyFiles(policy, listing=listing, cache=tmp_path / "cache").directory is None


def test_policy_that_was_sent_is_complete_with_its_last_file_and_kept(policy: Path, tmp_path: Path):
    listing, cache = policy_listing(policy), tmp_path / "cache"
    files = PolicyFiles(tmp_path / "absent", listing=listing, cache=cache)
    files.take("config.json", memoryview(b"{}"))
    files.take("empty", memoryview(b""))
    assert files.directory is None
    send(files, policy)
    assert files.directory is not None and policy_listing(files.directory) == listing
    assert PolicyFiles(tmp_path / "absent", listing=listing, cache=cache).directory == files.directory
    assert [path.name for path in cache.iterdir()] == [files.directory.name]


def test_kept_policy_that_was_damaged_is_replaced(policy: Path, tmp_path: Path):
    listing, cache = policy_listing(policy), tmp_path / "cache"
    first = PolicyFiles(tmp_path / "absent", listing=listing, cache=cache)
    send(first, policy)
    assert first.directory is not None
    (first.directory / "config.json").write_bytes(b"[]")
    second = PolicyFiles(tmp_path / "absent", listing=listing, cache=cache)
    assert second.directory is None
    send(second, policy)
    assert second.directory is not None and policy_listing(second.directory) == listing


def test_file_that_changed_on_the_way_is_refused(policy: Path, tmp_path: Path):
    files = PolicyFiles(tmp_path / "absent", listing=policy_listing(policy), cache=tmp_path / "cache")
    with pytest.raises(ChildFailedError, match="has changed while it was sent"):
        files.take("config.json", memoryview(b"[]"))


@pytest.mark.parametrize("name", ["../config.json", "other.json", "/etc/passwd"])
def test_file_that_is_none_of_the_policy_is_refused(policy: Path, tmp_path: Path, name: str):
    files = PolicyFiles(tmp_path / "absent", listing=policy_listing(policy), cache=tmp_path / "cache")
    with pytest.raises(ChildFailedError, match="is no file of the policy"):
        files.take(name, memoryview(b"x"))

"""What the rest of the program knows of searchers on other machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tbactl.config import packages
from tbactl.config.layout import ProcessConfig
from tbactl.config.packages import missing_packages
from tbactl.config.sections import RunConfig, SearchersSection
from tbactl.config.without_effect import settings_without_effect
from tbactl.supervision.run_directory import child_argv
from tbactl.supervision.shared_memory import SharedMemory, shared_memory_layout


def config(**searchers: object) -> RunConfig:
    sections = {"searchers": {"engine": "fake", "ring_capacity_bytes": 4096, **searchers}, "trainer": {"kind": "fake"}}
    return RunConfig.model_validate({"name": "t", "task": {"kind": "fake"}, "policy": {"path": "p"}, **sections})


@pytest.mark.parametrize(
    ("role", "launcher", "module"),
    [
        ("searcher", "ray", "tbactl.cluster"),
        ("searcher", "processes", "tbactl.searcher"),
        ("trainer", "ray", "tbactl.trainer"),
    ],
)
def test_only_a_searcher_elsewhere_is_another_program(role: str, launcher: str, module: str):
    process = ProcessConfig.model_validate(
        {
            "role": role, "index": 0, "run": config(launcher=launcher).model_dump(), "run_directory": "r",
            "shm_directory": "s", "policy_directory": "p",
        }
    )  # fmt: skip
    assert child_argv(process, Path("c.json"))[1:] == ("-m", module, "--config", "c.json")


def test_ray_that_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "ray" else object())
    assert missing_packages(config()) == []
    (problem,) = missing_packages(config(launcher="ray"))
    assert "needs the package 'ray'" in problem and "pip install 'tbactl[ray]'" in problem


@pytest.mark.parametrize("setting", [{"ray_address": "h:1"}, {"ray_resources": {"GPU": 1.0}}])
def test_settings_of_ray_without_ray_are_said_to_have_no_effect(setting: dict[str, object]):
    (problem,) = settings_without_effect(config(**setting))
    assert "has no effect unless searchers.launcher = ray" in problem.sentence
    assert list(settings_without_effect(config(launcher="ray", **setting))) == []


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "[::1]:6379", "head.cluster:6379"])
def test_address_of_a_cluster_is_taken(address: str):
    assert SearchersSection(ray_address=address).ray_address == address


@pytest.mark.parametrize("address", ["ray://head:10001", "", "head 6379"])
def test_address_that_is_no_node_is_refused(address: str):
    with pytest.raises(ValidationError):
        SearchersSection(ray_address=address)


def test_node_makes_the_ring_of_its_own_searcher_only(tmp_path: Path):
    run = config(num_searchers=3)
    memory = SharedMemory(
        shared_memory_layout(tmp_path / "r", root=tmp_path), config=run, run_directory=tmp_path, rings=(2,)
    )
    assert [path.name for path in memory.layout.root.glob("ring-*")] == ["ring-2"]
    memory.remove()

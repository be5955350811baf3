"""What is registered and cannot be loaded: whose mistake it is decides the exit code."""

from __future__ import annotations

import sys

import pytest

from tbactl import registry
from tbactl.errors import ConfigError, TaskError


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("tbactl.tasks", TaskError),
        ("tbactl.loggers", ConfigError),
        ("tbactl.engines", ConfigError),
        ("tbactl.objectives", ConfigError),
    ],
)
@pytest.mark.parametrize(
    ("source", "sentence"),
    [("raise RuntimeError('of another machine')\n", "RuntimeError: of another machine"), ("Part = 3\n", "is no class")],
)
def test_plug_in_that_cannot_be_loaded_is_a_tasks_fault_only_if_it_is_one(
    tmp_path, monkeypatch, group, expected, source, sentence
):
    (tmp_path / "foreign_part.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_part", raising=False)
    monkeypatch.setitem(registry.BUILT_IN, group, {"foreign": "foreign_part:Part"})
    with pytest.raises(expected, match=f"'foreign' cannot be loaded: .*{sentence}"):
        registry.load(group, "foreign")

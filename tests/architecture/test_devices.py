"""No device is written into the code: it is asked for, so that everything runs on a machine without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tbactl/**/*.py"), *ROOT.glob("tasks/*/tbactl_*/**/*.py")])
# "cuda" if available else "cpu"; device.type == "cuda"; states["cuda"].
ASKING = (ast.IfExp, ast.Compare, ast.Subscript)


def written_devices(source: str) -> Iterator[int]:
    """Lines that name a CUDA device, or move something to one, without having asked whether there is one."""
    for parent in ast.walk(ast.parse(source)):
        for node in ast.iter_child_nodes(parent):
            is_name = isinstance(node, ast.Constant) and str(node.value).partition(":")[0] == "cuda"
            is_move = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
            if is_move or (is_name and not isinstance(parent, ASKING)):
                yield node.lineno


@pytest.mark.fault("I-87")
def test_no_device_is_written_into_the_code():
    assert len(FILES) > 200
    found = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in written_devices(path.read_text())]
    assert found == []


@pytest.mark.parametrize("source", ["model.cuda()", "model.to('cuda')", "autocast(device_type='cuda:0')", "x = 'cuda'"])
def test_written_device_is_found(source):
    assert list(written_devices(source)) == [1]

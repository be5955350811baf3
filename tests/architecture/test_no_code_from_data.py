"""Nothing that was read from a file, a ring or a model can become code: what could do that is not in the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tbactl/**/*.py"), *ROOT.glob("tasks/*/tbactl_*/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
# Call -> argument that must be there, and its value.
REQUIRED = {"torch.load": ("weights_only", True)}
FORBIDDEN = {("allow_pickle", True), ("shell", True), ("trust_remote_code", True), ("weights_only", False)}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what could run code that is data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {(k.arg, k.value.value) for k in node.keywords if isinstance(k.value, ast.Constant)}
            if name in CALLS or given & FORBIDDEN or (name in REQUIRED and REQUIRED[name] not in given):
                yield node.lineno, name


def test_nothing_that_is_read_can_become_code():
    assert len(FILES) > 250
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in FILES for line, name in dangers(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "numpy.load(path, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(line, shell=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_danger_is_found(source: str):
    assert len(list(dangers(source))) == 1

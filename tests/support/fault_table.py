"""Writes docs/faults.md: `python -m tests.support.fault_table`. Which test shows that we do not have which fault."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "faults.toml"
DOCUMENT = ROOT / "docs" / "faults.md"

HEAD = """\
# Faults that others had, and the tests that show we do not

<!-- Written by `python -m tests.support.fault_table` from tests/faults.toml and the markers of the tests. -->

Each row is a kind of fault: what would go wrong, and the tests that fail when it does. A test carries the ids with
`@pytest.mark.fault("I-01")`; `pytest -m fault` runs them all. A new fault gets a row in `tests/faults.toml` and a test.
"""
PARTS = {
    "I": "## Reported by users of comparable toolkits\n",
    "R": "## Found by reading the reference code of the paper\n\n[algorithm.md](algorithm.md) says more about them.\n",
}


@dataclass(frozen=True)
class Fault:
    """A kind of fault, in one sentence, and why nothing here can have it (empty: it could)."""

    what: str
    not_applicable: str = ""


@dataclass(frozen=True, order=True)
class MarkedTest:
    """A test, by its file below the root and its name."""

    file: str
    name: str


def read_faults(path: Path = DATA) -> dict[str, Fault]:
    """The faults by id, in the file's order."""
    return {name: Fault(**fields) for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def marked_tests(directory: Path = ROOT / "tests") -> dict[str, list[MarkedTest]]:
    """Tests by the fault that they name. Reads the files without importing them."""
    found: dict[str, list[MarkedTest]] = defaultdict(list)
    for path in sorted(directory.rglob("test_*.py")):
        for name, ids in _markers(path):
            for fault in ids:
                found[fault].append(MarkedTest(path.relative_to(directory.parent).as_posix(), name))
    return found


def _markers(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Name of each marked test and the ids of its marker.

    Raises:
        ValueError: a marker is not the decorator of a test, or holds something else than ids.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    num_markers = sum(map(_is_marker, ast.walk(tree)))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in filter(_is_marker, node.decorator_list):
                assert isinstance(call, ast.Call)
                num_markers -= 1
                yield node.name, [str(ast.literal_eval(argument)) for argument in call.args]
    if num_markers:
        raise ValueError(f"{path}: {num_markers} fault markers are not decorators of a test.")


def _is_marker(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"


def render(faults: Mapping[str, Fault], tests: Mapping[str, list[MarkedTest]]) -> str:
    """The document."""
    parts = [HEAD]
    for letter, title in PARTS.items():
        rows = [
            f"| {name} | {fault.what} | {_shown_by(fault, tests.get(name, []))} |"
            for name, fault in faults.items()
            if name.startswith(letter)
        ]
        parts.append("\n".join([title, "| id | what would go wrong | shown by |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _shown_by(fault: Fault, tests: list[MarkedTest]) -> str:
    if fault.not_applicable:
        return f"*cannot apply*: {fault.not_applicable}"
    return "<br>".join(f"[{test.name.removeprefix('test_')}](../{test.file})" for test in sorted(tests))


if __name__ == "__main__":
    DOCUMENT.write_text(render(read_faults(), marked_tests()), encoding="utf-8")

"""What the documents show must work."""

import re
import tomllib
import types
from pathlib import Path

import pytest

from tbactl.protocols import Task
from tbactl.testing.task_conformance import check_task

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tasks/*/*.md")])


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_the_task_in_writing_a_task_passes_the_conformance_suite() -> None:
    source = code_blocks(ROOT / "docs/writing-a-task.md", "python")[0]
    module = types.ModuleType("tbactl_reverse")
    exec(compile(source, "docs/writing-a-task.md", "exec"), module.__dict__)
    task = module.ReverseTask()
    assert isinstance(task, Task)
    assert check_task(task) == []


def test_the_task_in_writing_a_task_is_about_fifty_lines() -> None:
    source = code_blocks(ROOT / "docs/writing-a-task.md", "python")[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 60


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_toml_in_documents_parses(path: Path) -> None:
    for block in code_blocks(path, "toml"):
        tomllib.loads(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name}: {target}"

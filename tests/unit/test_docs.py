"""What the documents show must work."""

import re
import tomllib
import types
from pathlib import Path

import pytest

from tbactl.config.hardware import PROFILES
from tbactl.config.loading import load_recipe
from tbactl.config.sections import RunConfig, Section
from tbactl.protocols import Task
from tbactl.testing.task_conformance import check_task

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tasks/*/*.md")])
# `replay.md` is a file, `replay.capacity` a setting.
FILE_ENDINGS = {"csv", "html", "json", "jsonl", "md", "png", "py", "toml"}


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.fault("I-71")
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


@pytest.mark.fault("I-71")
def test_settings_that_documents_name_exist() -> None:
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    models = {name: model for name, model in sections.items() if isinstance(model, type) and issubclass(model, Section)}
    named = {
        (path.name, section, key)
        for path in DOCUMENTS
        for section, key in re.findall(r"(?:`|--set )([a-z]+)\.([a-z_]+)\b(?!\.[a-z]*`)", path.read_text())
        if section in models and key not in FILE_ENDINGS
    }
    assert len(named) > 30
    assert [name for name in sorted(named) if name[2] not in models[name[1]].model_fields] == []


@pytest.mark.fault("I-71")
@pytest.mark.parametrize(
    ("document", "base", "number"), [("cli.md", "", 0), ("redteam.md", 'extends = "redteam.toml"\n', 0)]
)
def test_recipe_in_a_document_is_valid(document: str, base: str, number: int, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(base + code_blocks(ROOT / "docs" / document, "toml")[number])
    for profile in PROFILES:
        load_recipe(str(recipe), profile=profile)


@pytest.mark.fault("I-71")
@pytest.mark.parametrize("block", code_blocks(ROOT / "docs/reward-models.md", "toml"))
def test_reward_recipe_in_a_document_is_valid(block: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(block)
    load_recipe(str(recipe), profile="cpu")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name}: {target}"

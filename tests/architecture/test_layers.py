"""The layers of docs/adr and pyproject.toml, enforced; and what the command line must not import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "vllm", "deepspeed", "transformers", "lm_eval", "datasets", "numpy", "reasoning_gym", "math_verify")


def imported_by(statement):
    """Top-level packages in sys.modules after a statement ran in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.fault("R-09")
@pytest.mark.slow
def test_import_linter_finds_no_broken_contract():
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([str(lint), "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.fault("I-86")
def test_help_imports_neither_heavy_packages_nor_any_command():
    code = (
        "from tbactl.cli.main import main\nmain(['--help'])\nassert not [m for m in sys.modules if '.commands.' in m]"
    )
    # pydantic and rich are light, but not light enough for every <TAB>.
    assert imported_by(code) & {*HEAVY, "pydantic", "rich"} == set()


@pytest.mark.fault("I-86")
@pytest.mark.parametrize(
    "module",
    [
        "tbactl.cli.commands.run",
        "tbactl.cli.commands.plan",
        "tbactl.cli.commands.eval",
        "tbactl.cli.commands.sft",
        "tbactl.cli.commands.buffer",
        "tbactl.cli.commands.tasks",
        "tbactl.cli.commands.doctor",
        "tbactl.cli.commands.chaos",
        "tbactl.config.loading",
        "tbactl.supervision.supervisor",
        "tbactl.dashboard.watch",
        "tbactl.ipc.ring",
        # Torch comes with the engine or the learner that needs it.
        "tbactl.searcher.run",
        "tbactl.trainer.session",
    ],
)
def test_light_module_imports_nothing_heavy(module):
    may_use_numpy = ("tbactl.dashboard", "tbactl.supervision", "tbactl.searcher", "tbactl.trainer")
    allowed = {"numpy"} if module.startswith(may_use_numpy) else set()
    assert imported_by(f"import {module}") & set(HEAVY) <= allowed


@pytest.mark.fault("I-69")
def test_loading_a_recipe_imports_nothing_heavy():
    code = "from tbactl.config.loading import load_recipe\nload_recipe('gsm8k', profile='cpu')"
    assert imported_by(code) & set(HEAVY) == set()

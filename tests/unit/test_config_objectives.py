from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tbactl import registry
from tbactl.config.loading import load_recipe
from tbactl.config.objectives import OPTION_MODELS, build_objective
from tbactl.errors import ConfigError
from tests.support.recipes import BASE, write_recipe


def problems_of(recipe: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe, overrides=list(overrides), profile="cpu")
    return list(caught.value.problems)


def test_every_built_in_objective_has_an_option_model_and_is_built_without_and_with_its_defaults() -> None:
    assert OPTION_MODELS.keys() == registry.BUILT_IN["tbactl.objectives"].keys()
    for kind in OPTION_MODELS:
        assert callable(build_objective(kind, {}))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("grpo", {"loss_type": "dapo", "clip_high": 0.28, "kl_in_loss": False}),
        ("grpo", {"importance_sampling_cap": 5}),
        ("rloo", {"importance_sampling_cap": 2.0, "importance_sampling_level": "sequence"}),
        ("reinforce", {"baseline": "zero"}),
        ("dr-grpo", {"kl_in_loss": False}),
    ],
)
def test_options_pass_from_recipe_to_objective(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    path = write_recipe(tmp_path)
    shown = [f"objective.options.{name}={str(value).lower()}" for name, value in options.items()]
    config = load_recipe(path, overrides=[f"objective.kind={kind}", *shown], profile="cpu").run_config
    assert config.objective.options == options
    build_objective(kind, config.objective.options)


def test_wrong_options_are_refused_all_at_once_with_line_value_allowed_and_suggestion(tmp_path: Path) -> None:
    text = '[objective]\nkind = "grpo"\n[objective.options]\nclip_lo = 0.1\nclip_low = -1.0\nbeta = 2.0\nzzz = 1\n'
    path = write_recipe(tmp_path, text + BASE)
    assert set(problems_of(path, "trainer.zero_stage=9")) >= {
        f"{path}:4: objective.options.clip_lo: objective 'grpo' has no such option; did you mean 'clip_low'?",
        f"{path}:5: objective.options.clip_low = -1.0 of objective 'grpo': must be at least 0.",
        f"{path}:6: objective.options.beta: objective 'grpo' has no such option; did you mean 'objective.beta'?",
        f"{path}:7: objective.options.zzz: objective 'grpo' has no such option; it has clip_low, clip_high, "
        "importance_sampling_cap, kl_in_loss, loss_type, scale_rewards.",
    }


def test_options_of_the_default_objective_are_checked_too(tmp_path: Path) -> None:
    (problem,) = problems_of(write_recipe(tmp_path), "objective.options.clip_low=0.2")
    assert problem.startswith("--set: objective.options.clip_low: objective 'trajectory-balance' has no such option")


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(
        write_recipe(tmp_path),
        "objective.kind=dr-grpo",
        "objective.options.importance_sampling_cap=2.0",
        "objective.options.clip_high=0.3",
    )
    assert "importance_sampling_cap replaces clipping; remove it, or clip_high." in problem


def test_unknown_objective_is_reported_once_and_its_options_not_at_all(tmp_path: Path) -> None:
    (problem,) = problems_of(write_recipe(tmp_path), "objective.kind=grppo", "objective.options.x=1")
    assert "did you mean 'grpo'" in problem


def test_objective_of_another_package_refuses_options_by_its_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs:
        def __init__(self, *, slope: float = 1.0) -> None:
            self.slope = slope

    monkeypatch.setattr(registry, "load", lambda group, name: Theirs)
    assert build_objective("theirs", {"slope": 2.0}).slope == 2.0
    with pytest.raises(ConfigError, match=r"objective 'theirs' refuses its options: .*unexpected keyword argument 'x'"):
        build_objective("theirs", {"x": 1})


def test_checking_options_imports_no_torch() -> None:
    code = (
        "import sys; from tbactl.config.objectives import objective_option_problems as find; "
        "list(find({'x': 1}, kind='grpo')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0

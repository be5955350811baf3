"""From a recipe's name and the command line to one validated configuration, or to all that is wrong with it at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tbactl.config import rules
from tbactl.config.hardware import Profile, choose_profile
from tbactl.config.overrides import apply_overrides
from tbactl.config.problems import Problem, located, validation_problems
from tbactl.config.recipes import COMMANDS, RecipeKind, locate_recipe, read_recipe
from tbactl.config.registered import registered_problems
from tbactl.config.reward import RewardConfig, reward_problems, reward_warnings
from tbactl.config.sections import RunConfig, SftConfig
from tbactl.config.settings import Settings
from tbactl.config.toml_lines import KeyPath
from tbactl.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
_PURPOSES: Mapping[RecipeKind, str] = {
    "run": "reinforcement learning",
    "sft": "supervised fine-tuning",
    "reward": "training a reward model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecipe:
    """A configuration with what there is to say about where it came from."""

    name: str
    kind: RecipeKind
    config: RunConfig | SftConfig | RewardConfig
    profile: Profile
    profile_reason: str
    sources: tuple[Path, ...]
    """Files read, the most basic first."""
    warnings: tuple[str, ...] = ()
    """Settings that work but hardly do what was meant; one sentence each."""

    @property
    def run_config(self) -> RunConfig:
        """The configuration of a run.

        Raises:
            ConfigError: this is a recipe for another command.
        """
        return self._of(RunConfig)

    @property
    def sft_config(self) -> SftConfig:
        """The configuration of a supervised fine-tuning.

        Raises:
            ConfigError: this is a recipe for another command.
        """
        return self._of(SftConfig)

    @property
    def reward_config(self) -> RewardConfig:
        """The configuration of a reward model's training.

        Raises:
            ConfigError: this is a recipe for another command.
        """
        return self._of(RewardConfig)

    def _of(self, model: type[Model]) -> Model:
        if not isinstance(self.config, model):
            raise ConfigError(
                f"'{self.name}' is a recipe for {_PURPOSES[self.kind]}; use `tbactl {COMMANDS[self.kind]} {self.name}`."
            )
        return self.config


def load_recipe(
    name_or_path: str,
    *,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    profile: Profile | None = None,
) -> LoadedRecipe:
    """Read, merge and validate a recipe.

    Args:
        name_or_path: name of a shipped recipe, or a TOML file.
        overrides: `dotted.key=value`, in the order given; the last wins.
        options: settings that options of the command stand for; they win over `overrides`.
        profile: None chooses by the hardware found.

    Raises:
        ConfigError: with one sentence for every mistake found.
    """
    choice = choose_profile(profile)
    recipe = read_recipe(locate_recipe(name_or_path), profile=choice.profile)
    problems = [*recipe.problems, *apply_overrides(recipe.settings, overrides)]
    for name, value in options.items():
        recipe.settings.assign((name,), value, origin="command line")
    warnings: list[str] = []
    config: RunConfig | SftConfig | RewardConfig | None
    if recipe.kind == "sft":
        config = validated(SftConfig, recipe.settings, check=rules.sft_problems, problems=problems)
    elif recipe.kind == "reward":
        config = validated(RewardConfig, recipe.settings, check=reward_problems, problems=problems)
    else:
        config = validated(RunConfig, recipe.settings, check=run_problems, problems=problems)
    if problems or config is None:
        raise ConfigError(*problems)
    if isinstance(config, RunConfig):
        found = rules.run_warnings(config, profile=choice.profile)
        warnings = [located(problem, recipe.settings) for problem in found]
    if isinstance(config, RewardConfig):
        warnings = [located(problem, recipe.settings) for problem in reward_warnings(config)]
    return LoadedRecipe(
        name=recipe.name,
        kind=recipe.kind,
        config=config,
        profile=choice.profile,
        profile_reason=choice.reason,
        sources=tuple(recipe.sources),
        warnings=tuple(warnings),
    )


def run_problems(config: RunConfig) -> Iterator[Problem]:
    """Every rule that refuses a run."""
    for rule in rules.ERRORS:
        yield from rule(config)


def validated(
    model: type[Model], settings: Settings, *, check: Callable[[Model], Iterator[Problem]], problems: list[str]
) -> Model | None:
    """Validate `settings` as `model`; append a sentence to `problems` for each mistake. None when it cannot be built.

    Rules that join several settings are asked even when some settings are wrong: those are then taken at their
    defaults, and what a rule says about one of them is left out.
    """
    found: list[Problem] = []
    config, wrong = _built(model, settings, found)
    found.extend(registered_problems(settings, sections=list(model.model_fields), wrong=wrong))
    if config is not None:
        found.extend(problem for problem in check(config) if not _touches(problem, wrong))
    problems.extend(located(problem, settings) for problem in dict.fromkeys(found))
    return config


def _built(model: type[Model], settings: Settings, found: list[Problem]) -> tuple[Model | None, set[KeyPath]]:
    values = settings.values
    wrong: set[KeyPath] = set()
    # Second attempt: without what the first one refused.
    for _ in range(2):
        try:
            # JSON, for then pydantic's strict mode takes an array for a tuple and a string for a path, nothing else.
            return model.model_validate_json(json.dumps(values, default=str), strict=True), wrong
        except ValidationError as error:
            if wrong:
                return None, wrong
            found.extend(validation_problems(error, model, settings))
            wrong = {tuple(details["loc"]) for details in error.errors()}
            values = _without(values, wrong)
    return None, wrong


def _without(value: Any, wrong: set[KeyPath], prefix: KeyPath = ()) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(inner, wrong, (*prefix, name))
            for name, inner in value.items()
            if not any(path[: len(prefix) + 1] == (*prefix, name) and _ends_here(path, prefix, inner) for path in wrong)
        }
    return value


def _ends_here(path: KeyPath, prefix: KeyPath, inner: Any) -> bool:
    # A wrong element spoils the whole array.
    return len(path) == len(prefix) + 1 or not isinstance(inner, dict)


def _touches(problem: Problem, wrong: set[KeyPath]) -> bool:
    return any(
        problem.path[: len(path)] == path or f"{'.'.join(map(str, path))} " in problem.sentence for path in wrong
    )

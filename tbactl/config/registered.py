"""Settings that name something installed: a task and its options, an engine, a learner, an objective, a policy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tbactl import registry
from tbactl.config.objectives import objective_option_problems
from tbactl.config.problems import Problem
from tbactl.config.sections import ObjectiveSection
from tbactl.config.settings import Settings, dotted
from tbactl.config.tasks import POLICY_PREFIX, build_task, shipped_policy
from tbactl.config.toml_lines import KeyPath
from tbactl.errors import ConfigError, TaskError, TbactlError
from tbactl.policies.packaged import PACKAGE_PREFIX, check_packaged_policy
from tbactl.policies.packaged_encoder import packaged_encoder

# Setting -> group of the registry its value must be in. An evaluation has `engine` at the top.
NAMED: tuple[tuple[KeyPath, str], ...] = (
    (("task", "kind"), "tbactl.tasks"),
    (("searchers", "engine"), "tbactl.engines"),
    (("engine",), "tbactl.engines"),
    (("trainer", "kind"), "tbactl.learners"),
    (("objective", "kind"), "tbactl.objectives"),
    (("replay", "sampler"), "tbactl.samplers"),
)


def registered_problems(
    settings: Settings, *, sections: Collection[str], wrong: Collection[KeyPath]
) -> Iterator[Problem]:
    """Check names against the registry, options of tasks and of built-in objectives, and where the policy is.

    Args:
        settings: the values.
        sections: top-level names that the configuration has.
        wrong: settings already refused.
    """
    for path, group in NAMED:
        name = settings.get(path)
        if path[0] not in sections or path in wrong or not isinstance(name, str):
            continue
        try:
            registry.check_name(group, name)
        except ConfigError as error:
            yield from (Problem(path, f"{dotted(path)}: {sentence}") for sentence in error.problems)
            continue
        if path == ("task", "kind"):
            yield from _task_problems(name, settings.get(("task", "options")) or {})
            yield from _policy_problems(name, settings.get(("policy", "path")))
    if "objective" in sections:
        yield from _objective_problems(settings)
    if "replay" in sections:
        path = ("replay", "embedder")
        yield from _model_problems(path, settings.get(path), find_packaged=packaged_encoder)


def _task_problems(name: str, options: Any) -> Iterator[Problem]:
    if not isinstance(options, dict):
        return
    try:
        build_task(name, options).close()
    except TaskError as error:
        yield Problem(("task", "kind"), f"task.kind: {error}")
    except ConfigError as error:
        for sentence in error.problems:
            yield _option_problem(sentence, options)


def _option_problem(sentence: str, options: dict[str, Any]) -> Problem:
    # The line of the option that the task names, where it names one.
    prefix = "task.options"
    if (name := re.match(rf"{re.escape(prefix)}(\.\w+)+", sentence)) is not None:
        return Problem(tuple(name[0].split(".")), sentence)
    named = next((option for option in options if f"'{option}'" in sentence or f"{prefix}.{option}" in sentence), None)
    path: KeyPath = ("task", "options") if named is None else ("task", "options", named)
    return Problem(path, sentence if sentence.startswith(prefix) else f"{prefix}: {sentence}")


def _objective_problems(settings: Settings) -> Iterator[Problem]:
    kind = settings.get(("objective", "kind")) or ObjectiveSection().kind
    options = settings.get(("objective", "options")) or {}
    if isinstance(kind, str) and isinstance(options, dict):
        yield from objective_option_problems(options, kind=kind)


def _policy_problems(task: str, policy: Any) -> Iterator[Problem]:
    if not isinstance(policy, str):
        return
    path: KeyPath = ("policy", "path")
    if policy.startswith(POLICY_PREFIX):
        try:
            shipped_policy(task, policy)
        except TbactlError as error:
            prefix = f"policy.path = '{policy}': "
            yield Problem(path, prefix + str(error).removeprefix(prefix))
    else:
        yield from _model_problems(path, policy, find_packaged=check_packaged_policy)


def _model_problems(path: KeyPath, source: Any, *, find_packaged: Callable[[str], object]) -> Iterator[Problem]:
    """Of a model by package:NAME, directory or hub name."""
    if not isinstance(source, str):
        return
    if source.startswith(PACKAGE_PREFIX):
        try:
            find_packaged(source)
        except ConfigError as error:
            yield Problem(path, f"{dotted(path)} = '{source}': {error}")
    else:
        yield from _no_directory(path, source)


def _no_directory(path: KeyPath, source: str) -> Iterator[Problem]:
    # What does not look like a path may be a hub name. Path.expanduser() raises for an unknown user.
    if source.startswith(("/", "./", "../", "~")) and not Path(os.path.expanduser(source)).is_dir():
        yield Problem(path, f"{dotted(path)} = '{source}': there is no such directory.")

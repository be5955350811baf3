"""Names of what varies, resolved to classes only when used, so that nothing heavy is imported to read a recipe.

Built-in names map to "module:attribute"; third parties add entry points in the groups below. A name claimed twice is
refused. `TBACTL_LOAD_PLUGINS=0` restricts the search to what ships with tbactl and its own tasks.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from tbactl.errors import ConfigError, TaskError

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "tbactl.tasks": {
        "fake": "tbactl.testing.fake_task:FakeTask",
    },
    "tbactl.engines": {
        "vllm": "tbactl.engines.vllm_engine:VllmEngine",
        "transformers": "tbactl.engines.transformers_engine:TransformersEngine",
        "fake": "tbactl.testing.fake_engine:FakeEngine",
    },
    "tbactl.learners": {
        "deepspeed": "tbactl.trainer.learner:DeepSpeedLearner",
        "fake": "tbactl.testing.fake_learner:FakeLearner",
    },
    "tbactl.objectives": {
        "trajectory-balance": "tbactl.objectives.trajectory_balance:TrajectoryBalance",
        "tba-prime": "tbactl.objectives.tba_prime:TbaPrime",
        "reinforce": "tbactl.objectives.reinforce:Reinforce",
        "rloo": "tbactl.objectives.rloo:Rloo",
        "proximal-rloo": "tbactl.objectives.proximal_rloo:ProximalRloo",
        "ppo-clip": "tbactl.objectives.ppo_clip:PpoClip",
        "grpo": "tbactl.objectives.grpo:Grpo",
        "dr-grpo": "tbactl.objectives.dr_grpo:DrGrpo",
        "kimi": "tbactl.objectives.kimi:Kimi",
        "online-dpo": "tbactl.objectives.online_dpo:OnlineDpo",
    },
    "tbactl.samplers": {
        "mixture": "tbactl.replay.samplers:MixtureSampler",
        "recency": "tbactl.replay.samplers:RecencySampler",
        "uniform": "tbactl.replay.samplers:UniformSampler",
        "reward-softmax": "tbactl.replay.samplers:RewardSoftmaxSampler",
        "residual": "tbactl.replay.samplers:ResidualSampler",
    },
    "tbactl.loggers": {
        "jsonl": "tbactl.telemetry.jsonl:JsonlLogger",
        "tensorboard": "tbactl.telemetry.tensorboard:TensorBoardLogger",
        "wandb": "tbactl.telemetry.wandb:WandbLogger",
    },
}

OWN_DISTRIBUTIONS = ("tbactl", "tbactl-math", "tbactl-preference", "tbactl-redteam")


def suggestion(name: str, allowed: list[str]) -> str:
    """' (did you mean ...?)' for a near miss, else an empty string."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def available(group: str) -> dict[str, str]:
    """Name -> "module:attribute" of everything installed in a group.

    Raises:
        ConfigError: two distributions claim one name.
    """
    found = dict(BUILT_IN[group])
    for point in entry_points(group=group):
        distribution = point.dist.name.lower() if point.dist else ""
        if os.environ.get("TBACTL_LOAD_PLUGINS") == "0" and distribution not in OWN_DISTRIBUTIONS:
            continue
        if point.name in found and found[point.name] != point.value:
            raise ConfigError(
                f"{group}: the name '{point.name}' is claimed by {found[point.name]} and by {point.value} "
                f"({distribution}); uninstall one of them."
            )
        found[point.name] = point.value
    return found


def check_name(group: str, name: str) -> None:
    """Raise ConfigError, with the allowed names and a suggestion, unless `name` is installed in `group`."""
    names = sorted(available(group))
    if name not in names:
        kind = group.removeprefix("tbactl.").removesuffix("s")
        listing = ", ".join(sorted(names, key=lambda known: known == "fake")) or "none is installed"
        raise ConfigError(f"unknown {kind} '{name}'{suggestion(name, names)}; known: {listing}.")


def load(group: str, name: str) -> Any:
    """The class registered under `name`, imported now.

    Raises:
        ConfigError: the name is unknown, or its module needs a package that is not installed.
            Or somebody else's module, of anything but a task, cannot be imported, or holds no such class.
        TaskError: the same of a task's module.
    """
    check_name(group, name)
    failure = TaskError if group == "tbactl.tasks" else ConfigError
    target = available(group)[name]
    module_name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "tbactl":
            raise
        raise ConfigError(
            f"'{name}' needs the package '{error.name}', which is not installed; install tbactl with the extra "
            f"that brings it (`pip install 'tbactl[cpu]'` or `'tbactl[gpu]'`)."
        ) from error
    except Exception as error:
        if module_name.split(".")[0] == "tbactl":
            raise
        raise failure(
            f"'{name}' cannot be loaded: {target} raises {type(error).__name__}: {error}. Mend or uninstall "
            f"its package."
        ) from error
    if not isinstance(found, type):
        raise failure(f"'{name}' cannot be loaded: {target} is no class, but {found!r}.")
    return found

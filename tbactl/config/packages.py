"""Whether the packages that a configuration needs are installed: found without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from tbactl.config.sections import RunConfig

ENGINE_PACKAGES: Mapping[str, tuple[str, ...]] = {"vllm": ("vllm",), "transformers": ("torch", "transformers")}
LEARNER_PACKAGES: Mapping[str, tuple[str, ...]] = {"deepspeed": ("torch", "transformers", "deepspeed")}
INSTALL = "install tbactl with its extra, `pip install 'tbactl[cpu]'` or, with an NVIDIA device, `'tbactl[gpu]'`"


def missing_packages(config: RunConfig) -> list[str]:
    """A sentence for each setting whose package is not installed."""
    needs = [
        ("searchers.engine", config.searchers.engine, ENGINE_PACKAGES.get(config.searchers.engine, ())),
        ("trainer.kind", config.trainer.kind, LEARNER_PACKAGES.get(config.trainer.kind, ())),
    ]
    problems = [
        f"{setting} = '{value}' needs the package '{package}', which is not installed; {INSTALL}."
        for setting, value, packages in needs
        for package in packages
        if find_spec(package) is None
    ]
    if config.searchers.launcher == "ray" and find_spec("ray") is None:
        problems.append(
            "searchers.launcher = 'ray' needs the package 'ray', which is not installed; "
            "`pip install 'tbactl[ray]'`, or set it to 'processes'."
        )
    if config.logging.wandb_project is not None and find_spec("wandb") is None:
        problems.append(
            "logging.wandb_project needs the package 'wandb', which is not installed; "
            "`pip install 'tbactl[wandb]'`, or leave the setting away."
        )
    if config.logging.tensorboard and find_spec("tensorboard") is None:
        problems.append(
            "logging.tensorboard = true needs the package 'tensorboard', which is not installed; "
            "`pip install tensorboard`, or set it to false."
        )
    return problems

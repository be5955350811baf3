"""The configuration of a resumed run: what the run was started with, and the few settings that may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbactl.config import rules
from tbactl.config.layout import RunLayout
from tbactl.config.loading import LoadedRecipe, run_problems, validated
from tbactl.config.overrides import ORIGIN, apply_overrides
from tbactl.config.problems import located
from tbactl.config.recipes import shown_path
from tbactl.config.run_record import read_run_record
from tbactl.config.sections import RunConfig, TrainerSection
from tbactl.config.settings import Settings, dotted
from tbactl.config.toml_lines import KeyPath
from tbactl.errors import CheckpointError, ConfigError

# Sections and keys that neither optimizer, buffer nor random streams depend on; trainer.max_steps only where the
# schedule of the learning rate does not end there.
CHANGEABLE: tuple[KeyPath, ...] = (
    ("trainer", "max_steps"),
    ("evaluation",),
    ("checkpoint",),
    ("supervision",),
    ("logging",),
    ("sync", "max_logprob_difference"),
    ("sync", "stop_logprob_difference"),
    ("sync", "stop_patience"),
)

# Schedules of transformers whose learning rates do not depend on trainer.max_steps.
ENDLESS_SCHEDULES = ("constant", "constant_with_warmup", "inverse_sqrt")


def load_resumed(run_directory: Path, *, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Configuration, recipe name and profile of an earlier run, with overrides.

    Args:
        run_directory: what `tbactl run` made.
        overrides: `dotted.key=value`; only CHANGEABLE settings.

    Raises:
        CheckpointError: the run has no usable configuration.
        ConfigError: an override is wrong, or changes what a resumed run must keep.
    """
    record = read_run_record(run_directory)
    resolved = RunLayout(run_directory).resolved_config
    settings = Settings()
    try:
        before = RunConfig.model_validate_json(resolved.read_bytes())
    except (OSError, ValidationError) as error:
        reason = f"{error.error_count()} problem(s)" if isinstance(error, ValidationError) else error.strerror
        raise CheckpointError(
            f"{shown_path(resolved)}: cannot be read: {reason}; this run cannot be resumed."
        ) from None
    settings.merge(before.model_dump(mode="json"), file=shown_path(resolved), lines={})
    problems = apply_overrides(settings, overrides)
    config = validated(RunConfig, settings, check=run_problems, problems=problems)
    if config is not None:
        problems.extend(_forbidden_changes(before, config))
    if problems or config is None:
        raise ConfigError(*problems)
    return LoadedRecipe(
        name=record.recipe,
        kind="run",
        config=config,
        profile=record.profile,
        profile_reason="of the run that is resumed",
        sources=(resolved,),
        warnings=tuple(located(problem, settings) for problem in rules.run_warnings(config, profile=record.profile)),
    )


def _forbidden_changes(before: RunConfig, after: RunConfig) -> list[str]:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changeable = ", ".join(dotted(path) for path in CHANGEABLE)
    problems = [
        f"{ORIGIN}: {dotted(path)} is fixed since the run began, for a resumed run continues the same optimizer, "
        f"buffer and random streams; it may change {changeable}. Start a new run for this."
        for path in fixed_differences(old, new)
    ]
    if before.trainer.max_steps != after.trainer.max_steps and _ends_at_max_steps(before.trainer):
        problems.append(
            f"{ORIGIN}: trainer.max_steps is fixed since the run began, for the learning rates of trainer.lr_schedule "
            f"'{before.trainer.lr_schedule}' depend on it; it may change with {', '.join(ENDLESS_SCHEDULES)}, and with "
            f"warmup_stable_decay whose lr_schedule_options give num_stable_steps. Start a new run for this."
        )
    return problems


def _ends_at_max_steps(trainer: TrainerSection) -> bool:
    if trainer.lr_schedule == "warmup_stable_decay":
        return "num_stable_steps" not in trainer.lr_schedule_options
    return trainer.lr_schedule not in ENDLESS_SCHEDULES


def fixed_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[KeyPath]:
    """Settings that differ between two configurations, as JSON, and that a run keeps for its whole life."""
    return [
        path for path in _differences(old, new) if not any(path[: len(allowed)] == allowed for allowed in CHANGEABLE)
    ]


def _differences(old: object, new: object, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted({*old, *new})
        return [found for name in names for found in _differences(old.get(name), new.get(name), (*path, name))]
    return [] if old == new else [path]

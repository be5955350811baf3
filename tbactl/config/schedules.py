"""The learning-rate schedules of transformers, by name; known here so that a misspelt one fails before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tbactl.config.problems import Problem
from tbactl.registry import suggestion


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What a schedule takes besides warm-up and length: one of `required`, any of `optional`."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


# `reduce_lr_on_plateau` and `greedy` are absent: they follow a metric, not the step.
SCHEDULES: Mapping[str, ScheduleOptions] = {
    "constant": ScheduleOptions(),
    "constant_with_warmup": ScheduleOptions(),
    "linear": ScheduleOptions(),
    "cosine": ScheduleOptions(optional=("num_cycles",)),
    "cosine_with_restarts": ScheduleOptions(optional=("num_cycles",)),
    "cosine_with_min_lr": ScheduleOptions(required=("min_lr", "min_lr_rate"), optional=("num_cycles",)),
    "cosine_warmup_with_min_lr": ScheduleOptions(
        required=("min_lr", "min_lr_rate"), optional=("num_cycles", "warmup_lr_rate")
    ),
    "inverse_sqrt": ScheduleOptions(optional=("timescale",)),
    "polynomial": ScheduleOptions(optional=("lr_end", "power")),
    "warmup_stable_decay": ScheduleOptions(
        required=("num_decay_steps",),
        optional=("num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
}


def schedule_problems(name: str, options: Mapping[str, Any], *, section: str) -> Iterator[Problem]:
    """Problems of `SECTION.lr_schedule` and `SECTION.lr_schedule_options`."""
    path = tuple(int(part) if part.isdigit() else part for part in section.split("."))
    schedule = SCHEDULES.get(name)
    if schedule is None:
        known = sorted(SCHEDULES)
        yield Problem(
            (*path, "lr_schedule"),
            f"{section}.lr_schedule = '{name}': there is no such schedule{suggestion(name, known)}; "
            f"known: {', '.join(known)}.",
        )
        return
    if schedule.required and not set(schedule.required) & set(options):
        needed = " or ".join(f"{section}.lr_schedule_options.{option}" for option in schedule.required)
        yield Problem((*path, "lr_schedule"), f"{section}.lr_schedule = '{name}' needs {needed}.")
    allowed = [*schedule.required, *schedule.optional]
    for option in options:
        if option not in allowed:
            yield Problem(
                (*path, "lr_schedule_options", option),
                f"{section}.lr_schedule_options.{option}: schedule '{name}' has no such option"
                f"{suggestion(option, allowed)}; known: {', '.join(allowed) or 'none'}.",
            )

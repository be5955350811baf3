"""The learning-rate schedules of transformers, by name; known here so that a misspelt one fails before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tbactl.config.problems import Problem, allowed, show_value
from tbactl.config.sections import Fraction, NonNegativeFloat, PositiveInt
from tbactl.config.toml_lines import KeyPath
from tbactl.registry import suggestion


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What a schedule takes besides warm-up and length: exactly one of `required`, any of `optional`."""

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


NumSteps = Annotated[int, Field(ge=0)]
Shape = Literal["linear", "cosine", "1-sqrt"]
# What transformers can compute a learning rate from; it checks next to nothing itself, or only in the middle of a run.
OPTION_TYPES: Mapping[str, Any] = {
    "num_cycles": NonNegativeFloat,
    "min_lr": NonNegativeFloat,
    "min_lr_rate": Fraction,
    "warmup_lr_rate": Fraction,
    "timescale": PositiveInt,
    "lr_end": NonNegativeFloat,
    "power": NonNegativeFloat,
    "num_decay_steps": NumSteps,
    "num_stable_steps": NumSteps,
    "warmup_type": Shape,
    "decay_type": Shape,
    "min_lr_ratio": Fraction,
}

# Of `polynomial` in transformers, where the options do not give it.
DEFAULT_LR_END = 1e-7


def schedule_problems(
    name: str, options: Mapping[str, Any], *, learning_rate: float, section: str
) -> Iterator[Problem]:
    """Problems of `SECTION.lr_schedule` and `SECTION.lr_schedule_options`, with the peak `SECTION.learning_rate`."""
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
    yield from _required_problems(name, options, schedule=schedule, section=section, path=path)
    wrong = list(_option_problems(name, options, schedule=schedule, section=section, path=path))
    yield from wrong
    if not wrong:
        yield from _end_problems(name, options, learning_rate=learning_rate, section=section, path=path)


def _required_problems(
    name: str, options: Mapping[str, Any], *, schedule: ScheduleOptions, section: str, path: KeyPath
) -> Iterator[Problem]:
    given = [option for option in schedule.required if option in options]
    if schedule.required and not given:
        needed = " or ".join(f"{section}.lr_schedule_options.{option}" for option in schedule.required)
        yield Problem((*path, "lr_schedule"), f"{section}.lr_schedule = '{name}' needs {needed}.")
    if len(given) > 1:
        yield Problem(
            (*path, "lr_schedule_options", given[-1]),
            f"{section}.lr_schedule_options.{given[-1]}: schedule '{name}' takes only one of {', '.join(given)}; "
            f"remove the other.",
        )


def _option_problems(
    name: str, options: Mapping[str, Any], *, schedule: ScheduleOptions, section: str, path: KeyPath
) -> Iterator[Problem]:
    known = [*schedule.required, *schedule.optional]
    for option, value in options.items():
        setting = f"{section}.lr_schedule_options.{option}"
        if option not in known:
            sentence = (
                f"{setting}: schedule '{name}' has no such option{suggestion(option, known)}; "
                f"known: {', '.join(known) or 'none'}."
            )
        elif (refusal := _refusal(option, value)) is not None:
            sentence = f"{setting} = {show_value(value)}: {refusal}."
        else:
            continue
        yield Problem((*path, "lr_schedule_options", option), sentence)


def _refusal(option: str, value: Any) -> str | None:
    try:
        # Strict, for what transformers gets is the value as it was written.
        TypeAdapter(OPTION_TYPES[option]).validate_python(value, strict=True)
    except ValidationError as error:
        return allowed(error.errors()[0])
    return None


def _end_problems(
    name: str, options: Mapping[str, Any], *, learning_rate: float, section: str, path: KeyPath
) -> Iterator[Problem]:
    """Where a schedule would end above its peak."""
    peak = f"{section}.learning_rate = {learning_rate:g}"
    if name == "polynomial" and "lr_end" not in options and learning_rate <= DEFAULT_LR_END:
        yield Problem(
            (*path, "learning_rate"),
            f"{peak}: must be greater than {DEFAULT_LR_END:g}, where schedule '{name}' ends; "
            f"{section}.lr_schedule_options.lr_end sets another end.",
        )
    if name == "polynomial" and options.get("lr_end", 0.0) >= learning_rate:
        yield Problem(
            (*path, "lr_schedule_options", "lr_end"),
            f"{section}.lr_schedule_options.lr_end = {options['lr_end']:g}: must be less than {peak}, the peak.",
        )
    if options.get("min_lr", 0.0) > learning_rate:
        yield Problem(
            (*path, "lr_schedule_options", "min_lr"),
            f"{section}.lr_schedule_options.min_lr = {options['min_lr']:g}: must be at most {peak}, the peak.",
        )

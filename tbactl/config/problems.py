"""From pydantic's list of errors to sentences that name the key as the user typed it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tbactl.config.sections import NAME_PATTERN, OUTPUT_NAME_PATTERN
from tbactl.config.settings import Settings, dotted
from tbactl.config.toml_lines import KeyPath

# pydantic's error type -> what is allowed; filled from the error's context.
ALLOWED: Mapping[str, str] = {
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "tuple_type": "must be an array",
    "list_type": "must be an array",
    "literal_error": "must be one of {expected}",
    "greater_than": "must be greater than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "string_too_short": "must not be empty",
    "too_short": "must have at least {min_length} element(s)",
    "too_long": "must have at most {max_length} element(s)",
}
PATTERNS: Mapping[str, str] = {
    NAME_PATTERN: "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit",
    OUTPUT_NAME_PATTERN: "must be 1 to 100 characters without '/', the first not '.'",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the setting, and a sentence about it that does not repeat where it was written."""

    path: KeyPath
    sentence: str


def setting_problem(config: BaseModel, setting: str, rest: str) -> Problem:
    """What is wrong with a setting, given as `section.name`, of a configuration: its value, then `rest`."""
    value: Any = config
    for part in setting.split("."):
        value = getattr(value, part)
    return Problem(tuple(setting.split(".")), f"{setting} = {value} {rest}")


def show_value(value: Any, *, max_characters: int = 60) -> str:
    """A value on one line, as `--set` takes it, control characters escaped, cut when long."""
    text = "none" if value is None else json.dumps(value, default=str, allow_nan=True)
    return text if len(text) <= max_characters else text[: max_characters - 3] + "..."


def located(problem: Problem, settings: Settings) -> str:
    """The full sentence: place, then problem."""
    origin = settings.origin(problem.path)
    return f"{origin}: {problem.sentence}" if origin else problem.sentence


def validation_problems(error: ValidationError, model: type[BaseModel], settings: Settings) -> Iterator[Problem]:
    """One problem for each error that pydantic found."""
    paths = [tuple(details["loc"]) for details in error.errors()]
    for details, path in zip(error.errors(), paths, strict=True):
        if details["type"] == "too_short" and any(other[: len(path)] == path != other for other in paths):
            continue  # pydantic does not count the elements that are wrong themselves
        if details["type"] == "extra_forbidden":
            yield Problem(path, _unknown_key(path, model))
        elif details["type"] == "missing":
            yield Problem(path, f"{dotted(path)} is missing: {_description(path, model)}")
        else:
            yield Problem(path, f"{dotted(path)} = {show_value(settings.get(path))}: {allowed(details)}.")


def allowed(details: ErrorDetails) -> str:
    """What pydantic would have taken, in our words: "must be at least 1"."""
    context = details.get("ctx", {})
    if details["type"] == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        return PATTERNS[context["pattern"]]
    template = ALLOWED.get(details["type"])
    return template.format(**context) if template else details["msg"].lower()


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> str:
    name = str(path[-1]).lower()
    section = _model_at(path[:-1], model)
    known = list(section.model_fields) if section else []
    nearby = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    elsewhere = [candidate for candidate in _all_keys(model) if candidate[-1] == name]
    if nearby:
        hint = f"did you mean '{dotted((*path[:-1], nearby[0]))}'?"
    elif elsewhere:
        hint = f"did you mean '{dotted(elsewhere[0])}'?"
    else:
        far = difflib.get_close_matches(name, [str(key[-1]) for key in _all_keys(model)], n=1, cutoff=0.75)
        owners = [dotted(key) for key in _all_keys(model) if far and key[-1] == far[0]]
        hint = f"did you mean '{owners[0]}'?" if owners else f"known here: {', '.join(known)}."
    return f"{_shown_key(path)}: there is no such setting; {hint}"


def _shown_key(path: KeyPath) -> str:
    """As it must be written in TOML: a letter that only looks like another, or none at all, is seen."""
    parts = [str(part) for part in path]
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in parts)


def _description(path: KeyPath, model: type[BaseModel]) -> str:
    section = _model_at(path[:-1], model)
    field = section.model_fields.get(str(path[-1])) if section else None
    if field is None:
        return "it must be set."
    inner = _model_in(field.annotation)
    return field.description or (inner and (inner.__doc__ or "").splitlines()[0]) or "it must be set."


def _model_at(path: KeyPath, model: type[BaseModel]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if current else None
        current = _model_in(field.annotation) if field else None
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


def _all_keys(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from _all_keys(inner, (*prefix, name))

"""`--set dotted.key=value` on the command line."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Sequence
from typing import Any

from tbactl.config.settings import Settings
from tbactl.errors import ConfigError

ORIGIN = "--set"


def apply_overrides(settings: Settings, overrides: Sequence[str]) -> list[str]:
    """Assign each override in turn; returns a sentence for each that could not be read."""
    problems = []
    for text in overrides:
        try:
            path, value = parse_override(text)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            settings.assign(path, value, origin=ORIGIN)
    return problems


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Split `a.b=c` into path and value.

    The value is read as TOML (`3`, `1e-5`, `true`, `[1, 2]`, `{a = 1}`, `"text"`); what is not TOML is a string, so
    quotes can be left away. The bare word `none` unsets an optional setting, which TOML itself cannot say.

    Raises:
        ConfigError: there is no `=`, or no key before it, the value is nested too deeply, or it is no text.
    """
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(
            f"--set {text!a}: this is not text in the locale's encoding; use a UTF-8 locale, as LC_ALL=C.UTF-8."
        )
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text!r}: expected SECTION.KEY=VALUE, for example --set trainer.max_steps=20.")
    return path, _value(value.strip())


def _value(text: str) -> Any:
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # not TOML, or an integer of thousands of digits
        return text
    except RecursionError:
        raise ConfigError(f"--set: a value is nested too deeply: {text[:40]} ...") from None
    # More keys: the text held a line break. Dates: no setting is one, but a run's name may look like one.
    if set(parsed) != {"value"} or isinstance(parsed["value"], datetime.date | datetime.time):
        return text
    return parsed["value"]

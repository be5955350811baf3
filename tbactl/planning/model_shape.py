"""The shape of the policy, from the files of a Hugging Face directory; no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tbactl.planning.hardware import ModelSection
from tbactl.policies.weights_header import tensor_shapes

# What the families call the same thing.
NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_heads": ("num_attention_heads", "n_head"),
    "vocabulary_size": ("vocab_size",),
}


def model_shape(directory: Path) -> ModelSection | None:
    """The shape of a policy; None where the directory is not one that holds weights and a known configuration."""
    try:
        settings = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    shapes: dict[str, list[int]] = {}
    for file in directory.glob("*.safetensors"):
        shapes |= tensor_shapes(file)
    found = {name: _first(settings, keys) for name, keys in NAMES.items()}
    if not shapes or None in found.values():
        return None
    layers, hidden, heads, vocabulary = (int(value) for value in found.values() if value is not None)
    return ModelSection(
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        num_layers=layers,
        hidden_size=hidden,
        num_key_value_heads=settings.get("num_key_value_heads") or heads,
        head_size=settings.get("head_dim") or hidden // heads,
        vocabulary_size=vocabulary,
        tied_embeddings="lm_head.weight" not in shapes,
    )


def _first(settings: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((settings[key] for key in keys if settings.get(key)), None)

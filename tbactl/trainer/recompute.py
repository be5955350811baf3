"""Gradient checkpointing: a layer's activations are not kept for the backward pass but computed again there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tbactl.errors import ConfigError


def recompute_layers(policy: PreTrainedModel) -> None:
    """Make every transformer layer forget its activations until the backward pass.

    Transformers' own switch takes the cache away from layers, and with it the shared prompts. Ours leaves it: the
    caches of `prompt_cache.py` give a layer the same a second time. Layers must not be random (dropout is removed).

    Args:
        policy: its layers are changed in place; parameters and their names are not. A model of foreign code, without
            the layers that transformers prepares for this, gets transformers' switch.

    Raises:
        ConfigError: the model cannot do it at all.
    """
    layers = [module for module in policy.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = _recomputed(layer.forward)
    if layers:
        return
    try:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError as error:
        raise ConfigError(f"trainer.gradient_checkpointing: {error} Set it to false.") from error
    policy.train()


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return wrapped

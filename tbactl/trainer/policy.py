"""The policy in Hugging Face form: loaded, exported, and what was written compared with what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tbactl.config.sections import PolicySection
from tbactl.errors import CheckpointError, ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_policy(section: PolicySection, *, directory: Path) -> LoadedPolicy:
    """Load the policy on the CPU, without dropout.

    Dropout would make log-probs random: two passes over one trajectory would differ, and so would policy and reference
    before the first step.

    Args:
        section: dtype, and whether the model's own code may run.
        directory: a local directory, or a hub name.

    Raises:
        ConfigError: there is no such model, or weights are missing in it.
    """
    try:
        model, info = _load_model(directory, dtype=DTYPES[section.dtype], trust_remote_code=section.trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=section.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path: cannot load a causal language model from '{directory}': {error}") from error
    if info["missing_keys"]:
        raise ConfigError(
            f"policy.path: '{directory}' lacks the weights {', '.join(sorted(info['missing_keys'])[:5])}; transformers "
            f"would make them up at random."
        )
    remove_dropout(model)
    return LoadedPolicy(model, tokenizer)


def _load_model(
    directory: Path, *, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(directory), dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True
    )
    return loaded


def remove_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability to zero, those that attention functions read included; not in the config."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def export_policy(
    policy: LoadedPolicy, directory: Path, *, weights: Mapping[str, Tensor], trust_remote_code: bool = False
) -> None:
    """Write model and tokenizer in Hugging Face form, load them again and compare every tensor.

    Args:
        policy: supplies config and tokenizer.
        directory: is created.
        weights: the state dict, complete, on the CPU; tied tensors under each of their names.
        trust_remote_code: run the model's own code to load it again.

    Raises:
        CheckpointError: what comes back is not what was written.
    """
    policy.model.save_pretrained(directory, state_dict=dict(weights))
    policy.tokenizer.save_pretrained(directory)
    verify_export(directory, weights=weights, trust_remote_code=trust_remote_code)


def verify_export(directory: Path, *, weights: Mapping[str, Tensor], trust_remote_code: bool = False) -> None:
    """Load a directory as a user would, and compare.

    Raises:
        CheckpointError: a tensor is missing, new, or different.
    """
    dtype = next(iter(weights.values())).dtype
    model, info = _load_model(directory, dtype=dtype, trust_remote_code=trust_remote_code)
    found = model.state_dict()
    problems = [
        f"{kind.replace('_', ' ')}: {', '.join(sorted(map(str, names))[:5])}" for kind, names in info.items() if names
    ]
    names = sorted(found.keys() | weights.keys())
    different = [n for n in names if n not in found or n not in weights or not torch.equal(found[n], weights[n])]
    if different:
        problems.append(f"not as in the trainer: {', '.join(different[:5])}")
    if problems:
        raise CheckpointError(
            f"{directory}: the exported policy does not load as it was written: {'; '.join(problems)}."
        )

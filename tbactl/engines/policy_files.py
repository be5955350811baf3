"""What engines read of a policy besides its weights: tokenizer, stop tokens, parameter shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from tbactl.config.engine import EngineConfig
from tbactl.errors import ConfigError
from tbactl.weight_sync.weights_file import shapes_of


def load_model_config(config: EngineConfig) -> PreTrainedConfig:
    """The architecture's settings.

    Raises:
        ConfigError: there is no such policy, or its positions do not suffice for `max_model_tokens`.
    """
    try:
        model_config = AutoConfig.from_pretrained(config.policy_directory, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path: cannot load {config.policy_directory}: {error}") from error
    positions = getattr(model_config, "max_position_embeddings", None)
    # One position is kept: scoring a sequence asks the engine for one token more.
    if positions is not None and config.max_model_tokens >= positions:
        raise ConfigError(
            f"prompts and completions of up to {config.max_model_tokens} tokens do not fit policy "
            f"{config.policy_directory}, which has {positions} positions; searchers.max_prompt_tokens + "
            f"searchers.max_new_tokens must be less than that."
        )
    return model_config


def load_tokenizer(config: EngineConfig) -> PreTrainedTokenizerBase:
    """The policy's tokenizer.

    Raises:
        ConfigError: there is none, or it has no EOS token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.policy_directory, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path: cannot load the tokenizer of {config.policy_directory}: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"the tokenizer of {config.policy_directory} has no EOS token; a completion could never stop. "
            f"Set eos_token in its tokenizer_config.json."
        )
    return tokenizer


def stop_token_ids(
    policy_directory: Path, tokenizer: PreTrainedTokenizerBase, *, trust_remote_code: bool
) -> frozenset[int]:
    """Tokens that end a completion: the tokenizer's EOS, and those of generation_config.json, else of config.json.

    As vLLM has them, for stopping as for `min_new_tokens`.
    """
    try:
        more: Any = GenerationConfig.from_pretrained(policy_directory).eos_token_id
    except OSError:  # it has no such file
        model_config = AutoConfig.from_pretrained(policy_directory, trust_remote_code=trust_remote_code)
        more = GenerationConfig.from_model_config(model_config).eos_token_id
    eos: list[Any] = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    return frozenset(token_id for token_id in eos if token_id is not None)


def parameter_shapes(config: EngineConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters under their Hugging Face names, tied ones included; no memory is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load_model_config(config), trust_remote_code=config.trust_remote_code)
    return shapes_of(model.state_dict())

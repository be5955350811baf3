"""The policy that supervised training starts from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.config.sections import SftConfig
from tbactl.errors import CheckpointError, ConfigError
from tbactl.sft.examples import ExampleSource, mixed_texts
from tbactl.sft.tokenizer import train_tokenizer

_TOKENIZER_EXAMPLES = 20_000


def initial_policy(config: SftConfig, *, source: ExampleSource) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy named by the configuration, or a new Llama with a tokenizer of its own; weights in float32."""
    torch.manual_seed(config.seed)
    if config.policy is not None:
        try:
            with resolved_policy(config.policy.path, task=config.task.kind) as directory:
                return load_policy(directory, trust_remote_code=config.policy.trust_remote_code)
        except CheckpointError as error:
            raise ConfigError(f"policy.path: {error}") from error
    tokenizer = train_tokenizer(
        _tokenizer_texts(config, source=source),
        vocabulary_size=config.vocabulary_size,
        max_tokens=config.max_tokens,
    )
    return _new_llama(config, tokenizer=tokenizer), tokenizer


def load_policy(
    path: str | Path, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A policy directory or hub name, with its tokenizer; weights in float32.

    Raises:
        ConfigError: it cannot be loaded, or its tokenizer has no EOS token.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=trust_remote_code, use_safetensors=True
        )
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path: cannot load {path}: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"policy.path: the tokenizer of {path} has no EOS token; completions could not end")
    return model, tokenizer


def _tokenizer_texts(config: SftConfig, *, source: ExampleSource) -> Iterator[str]:
    pairs = mixed_texts(source, mixture=config.stages[0].mixture, seed=config.seed)
    for prompt, completion in islice(pairs, _TOKENIZER_EXAMPLES):
        yield prompt + completion


def _new_llama(config: SftConfig, *, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    fields = {"max_position_embeddings": config.max_tokens, "tie_word_embeddings": True, **config.architecture}
    unknown = sorted(set(fields) - set(LlamaConfig().to_dict()))
    if unknown:
        raise ConfigError(f"architecture: LlamaConfig has no field {', '.join(unknown)}")
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=config.vocabulary_size, **special, **fields))
    model.generation_config = GenerationConfig(**special)
    return model

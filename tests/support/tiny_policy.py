"""Policies of a few ten thousand random weights, with a byte-level tokenizer, made in a moment for tests.

Their logits are scaled up so that greedy choices are clear and distributions far from uniform: a random model with
small weights would hide a wrong temperature or a stale head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM as Models
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast, Qwen2Config

Architecture = Literal["llama", "qwen2", "gpt_neox", "gpt2"]

EOS = "<eos>"
VOCABULARY_SIZE = 264  # 256 bytes, EOS, and a few ids that no text uses (models pad their vocabulary)


def make_tiny_policy(
    directory: Path,
    *,
    architecture: Architecture = "llama",
    seed: int = 0,
    hidden_size: int = 64,
    num_layers: int = 2,
    eos_bias: float = 0.0,
) -> Path:
    """Write a random policy in Hugging Face form: "llama" and "gpt2" have tied embeddings, the others do not.

    Args:
        directory: is created.
        architecture: which model class.
        seed: of the weights.
        hidden_size: twice a head size that vLLM supports on CPU (32, 64, 96, 128).
        num_layers: transformer blocks.
        eos_bias: how many times larger the output weights of EOS are made (0: as random).

    Returns:
        The directory.
    """
    tokenizer = make_byte_tokenizer()
    torch.manual_seed(seed)
    model = Models.from_config(_config(architecture, hidden_size, num_layers, tokenizer.eos_token_id))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.35)
        if eos_bias:
            model.get_output_embeddings().weight[tokenizer.eos_token_id] *= eos_bias
    directory.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each byte and an EOS; it adds no special token to a prompt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)} | {EOS: len(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False)


def _config(architecture: Architecture, hidden_size: int, num_layers: int, eos_token_id: Any) -> PreTrainedConfig:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "eos_token_id": eos_token_id,
        "bos_token_id": None,
    }
    if architecture == "llama":
        return LlamaConfig(**sizes, num_key_value_heads=1, tie_word_embeddings=True)
    if architecture == "qwen2":
        return Qwen2Config(**sizes, num_key_value_heads=1, tie_word_embeddings=False)
    if architecture == "gpt2":
        return GPT2Config(**sizes)
    return GPTNeoXConfig(**sizes, tie_word_embeddings=False)

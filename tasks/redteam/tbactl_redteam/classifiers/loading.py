"""What sequence classifiers and guard models share: reading model and tokenizer, texts in batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tbactl.errors import ConfigError

BATCH_TOKENS = 8192
_UNLIMITED = 1_000_000


def load_pretrained(
    source: str, *, model_class: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Model (on the GPU, where there is one), tokenizer, and what `from_pretrained` says about the weights.

    Raises:
        ConfigError: one of them is not there, or cannot be loaded.
    """
    path = str(Path(source).expanduser()) if source.startswith("~") else source
    has_gpu = torch.cuda.is_available()
    try:
        model, info = model_class.from_pretrained(
            path, dtype="auto" if has_gpu else torch.float32, use_safetensors=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"classifier '{source}' cannot be loaded: {_first_line(error)}.") from error
    # For some architectures transformers makes an empty tokenizer up where it finds none.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ConfigError(f"classifier '{source}' has no tokenizer; save the one that it was trained with beside it.")
    return model.to("cuda" if has_gpu else "cpu").eval().requires_grad_(False), tokenizer, info


def max_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The longest text that model and tokenizer take."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNLIMITED
    # The RoBERTa family counts positions from behind the padding token's id.
    if getattr(model.config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2
    return min(positions, tokenizer.model_max_length, _UNLIMITED)


def batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indexes of rows of token ids, of like length: `BATCH_TOKENS` with padding, but at least one row."""
    batch: list[int] = []
    for index in sorted(range(len(rows)), key=lambda number: len(rows[number])):
        if batch and (len(batch) + 1) * len(rows[index]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def padded(rows: Sequence[Sequence[int]], *, pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both (rows, longest row), padded on the right."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
    return ids, mask


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")

"""A sentence encoder: texts to unit vectors whose cosine says how alike they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tbactl.engines.missing_weights import check_weights, missing_weights
from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX
from tbactl.policies.packaged_encoder import packaged_encoder

logger = logging.getLogger(__name__)

_BATCH_TEXTS = 64


class SentenceEncoder:
    """An encoder of Hugging Face form, as sentence-transformers uses them: the mean of the last hidden states.

    It is loaded at the first call, in float32, and draws nothing from torch's generators, so that training goes on as
    if it were not there. A text's vector depends on what it is encoded together with by rounding only.

    Args:
        source: Hub name, local directory, or package:NAME.
        device: Where it computes.
        setting: Which setting names it, for messages.
    """

    def __init__(self, source: str, *, device: str = "cpu", setting: str = "replay.embedder") -> None:
        self._source = source
        self._device = torch.device(device)
        self._setting = setting
        self._loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts; what is too long for the model is cut.

        Returns:
            Shape (texts, dimensions), float32, rows of length 1 (0 where the tokenizer finds no token in a text).

        Raises:
            ConfigError: There is no such encoder, or it lacks weights.
        """
        model, tokenizer = self._loaded = self._loaded or self._load()
        vectors = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
        # Texts of similar length together: less padding.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), _BATCH_TEXTS):
            indexes = order[start : start + _BATCH_TEXTS]
            batch = tokenizer(
                [texts[index] for index in indexes],
                padding=True,
                truncation=True,
                max_length=_longest(model, tokenizer),
                return_tensors="pt",
            ).to(self._device)
            if batch["input_ids"].numel():
                hidden = model(**batch).last_hidden_state
                vectors[indexes] = _mean_pooled(hidden, batch["attention_mask"]).cpu().numpy()
        return vectors

    def _load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        source = self._directory()
        try:
            with torch.random.fork_rng():
                model, info = AutoModel.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
                tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{self._setting} = '{self._source}': cannot be loaded: {error}") from error
        # The mean of hidden states is taken, so that a layer which pools them is of no interest.
        check_weights(f"{self._setting} = '{self._source}'", missing_weights(info, unused=("pooler.",)))
        # For some architectures transformers makes an empty tokenizer up where it finds none: all texts would be alike.
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            raise ConfigError(
                f"{self._setting} = '{self._source}': it has no tokenizer; save the one that it was trained with "
                f"beside it."
            )
        logger.info("encoder=%s model=%s", self._source, type(model).__name__)
        return model.to(self._device).eval(), tokenizer

    def _directory(self) -> str:
        if not self._source.startswith(PACKAGE_PREFIX):
            return os.path.expanduser(self._source)
        try:
            return str(packaged_encoder(self._source))
        except ConfigError as error:
            raise ConfigError(f"{self._setting} = '{self._source}': {error}") from None


def _longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    return min(positions, tokenizer.model_max_length)


def _mean_pooled(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean over a text's tokens, then to length 1: shape (texts, dimensions)."""
    mask = attention_mask[:, :, None].to(hidden.dtype)
    mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
    return torch.nn.functional.normalize(mean, dim=1)

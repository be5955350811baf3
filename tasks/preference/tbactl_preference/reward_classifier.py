"""Reward models of Hugging Face form: `AutoModelForSequenceClassification` with one output.

Decoders are scored at the last token of prompt + completion + end of text. Their own `forward` looks for that token by
the id of the padding token, which is wrong where padding is the end-of-text token (Pythia) and impossible without one.
Here a text's length is what the tokenizer gave; ids are never asked. Encoders pool as they were trained to.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tbactl.engines.missing_weights import check_weights, missing_weights
from tbactl.errors import ConfigError

logger = logging.getLogger(__name__)

_BATCH_TOKENS = 4096
# Encoders of the BERT family have no longest length in their tokenizer's file if it was made by hand.
_UNLIMITED = 1_000_000


class ClassifierReward:
    """Scores texts with a sequence classifier, in batches of similar length.

    Texts too long for the model lose their beginning.

    Args:
        model: with one output.
        tokenizer: the model's.
        max_tokens: None: what model and tokenizer allow; they are not asked for more in any case.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int | None = None
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_tokens = min(max_tokens or _UNLIMITED, _max_tokens(model, tokenizer))
        self._num_cut = 0

    @classmethod
    def load(cls, path: str) -> ClassifierReward:
        """From a directory or hub name; on the GPU, where there is one, in the type of its weights, else in float32.

        Raises:
            ConfigError: there is no model or no tokenizer, or the model lacks weights or has more than one output.
        """
        model, tokenizer = load_classifier(path, dtype="auto" if torch.cuda.is_available() else torch.float32)
        use_best_device(model)
        return cls(model, tokenizer)

    @torch.inference_mode()
    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """As `RewardModel.score`."""
        rows = [self.token_ids(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        scores = [math.nan] * len(rows)  # of what has no token at all
        for indexes in _batches(rows):
            found = last_token_scores(self.model, [rows[index] for index in indexes]).float().tolist()
            for index, score in zip(indexes, found, strict=True):
                scores[index] = score
        return scores

    def token_ids(self, prompt: str, completion: str) -> list[int]:
        """Of both, joined, with end of text; the beginning is cut off where they are too long.

        Tokenizers that add tokens of their own (BERT) do so, and end of text is added where the tokenizer has one.
        """
        ids = list(self.tokenizer(prompt + completion, truncation=False, verbose=False)["input_ids"])
        eos = self.tokenizer.eos_token_id
        if eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
        if len(ids) <= self.max_tokens:
            return ids
        self._num_cut += 1
        if self._num_cut == 1:
            logger.warning(
                "reward model: a text of %d tokens is cut to its last %d; further ones are not reported",
                len(ids),
                self.max_tokens,
            )
        # What the tokenizer puts before every text (BERT's [CLS], Llama's BOS) stays.
        head = _num_leading_special(self.tokenizer, ids)
        return ids[:head] + ids[len(ids) - self.max_tokens + head :]


def use_best_device(module: torch.nn.Module) -> None:
    """Move it to the GPU, where there is one."""
    module.to("cuda" if torch.cuda.is_available() else "cpu")


def load_classifier(path: str, *, dtype: torch.dtype | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence classifier with one output and its tokenizer, from a directory or hub name.

    Raises:
        ConfigError: either cannot be loaded or is incomplete, or there are several outputs.
    """
    if path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir():
        raise ConfigError(f"reward model '{path}': there is no such directory.")
    source = str(Path(path).expanduser()) if path.startswith("~") else path
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"reward model '{path}' cannot be loaded: {_first_line(error)}") from error
    if model.config.num_labels != 1:
        raise ConfigError(
            f"reward model '{path}' has {model.config.num_labels} outputs; a reward model has one (num_labels = 1)."
        )
    check_weights(
        f"reward model '{path}'",
        missing_weights(info),
        body=f"{model.base_model_prefix}.",
        # A language model, without the layer that scores: it would be random.
        headless="it was not trained as a reward model. `tbactl reward train` makes one of it.",
    )
    return model, load_tokenizer(source)


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        ConfigError: there is none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"reward model '{path}' has no tokenizer that can be loaded: {_first_line(error)}; save the tokenizer that "
            f"it was trained with beside it."
        ) from error
    # For some architectures transformers makes an empty tokenizer up where it finds none.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ConfigError(f"reward model '{path}' has no tokenizer; save the one that it was trained with beside it.")
    return tokenizer


def last_token_scores(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """One score for each row of token ids: shape (rows,). Padded on the right, whatever the tokenizer says."""
    device = model.device
    lengths = torch.tensor([len(row) for row in rows], device=device)
    # Which token pads is of no importance: it is masked, and of no decoder's past.
    input_ids = torch.zeros((len(rows), int(lengths.max())), dtype=torch.long)
    for number, row in enumerate(rows):
        input_ids[number, : len(row)] = torch.tensor(row)
    mask = (torch.arange(input_ids.shape[1], device=device)[None, :] < lengths[:, None]).long()
    input_ids = input_ids.to(device)
    score = getattr(model, "score", None)
    if not isinstance(score, torch.nn.Module):  # an encoder
        return model(input_ids=input_ids, attention_mask=mask).logits[:, 0]
    hidden = model.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state
    last = hidden[torch.arange(len(rows), device=device), lengths - 1]  # [rows, hidden size]
    return score(last)[:, 0]


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indexes of rows that are not empty, of similar length: `_BATCH_TOKENS` with padding, but at least one row."""
    batch: list[int] = []
    filled = [index for index in range(len(rows)) if rows[index]]
    for index in sorted(filled, key=lambda number: len(rows[number])):
        if batch and (len(batch) + 1) * len(rows[index]) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _num_leading_special(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> int:
    special = set(tokenizer.all_special_ids)
    return next((number for number, token in enumerate(ids) if token not in special), 0)


def _max_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    positions = getattr(model.config, "max_position_embeddings", None) or _UNLIMITED
    return min(positions, tokenizer.model_max_length, _UNLIMITED)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

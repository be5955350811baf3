"""The reference policy: exact log-probs of given tokens by plain forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.errors import ConfigError
from tbactl_preference.divergence import Sequences

# Logits of one batch, in float32: 512 MiB.
_MAX_LOGITS = 2**27


class ReferencePolicy:
    """A causal language model in float32; implements `divergence.Reference`.

    Log-probs do not depend on how sequences are batched, nor on the tokenizer's padding: batches are padded on the
    right by a mask made of lengths, so it plays no role whether there is a pad token, or whether it is the end of text.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        max_logits: upper bound of positions times vocabulary in one batch of more than one sequence.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_logits: int = _MAX_LOGITS) -> None:
        self._model = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._max_tokens = max(1, max_logits // model.config.get_text_config().vocab_size)

    @classmethod
    def load(cls, name: str) -> ReferencePolicy:
        """Read a policy onto the accelerator, if there is one.

        Args:
            name: whatever `tbactl eval` takes as CHECKPOINT.

        Raises:
            ConfigError: it cannot be loaded.
            CheckpointError: there is no policy there, or it is damaged.
        """
        with resolved_policy(name, task="preference") as directory:
            try:
                model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, use_safetensors=True)
                tokenizer = AutoTokenizer.from_pretrained(directory)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"reference_policy = '{name}': cannot load it: {error}; choose another, or "
                    f"--set task.options.reference_policy=none."
                ) from error
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return cls(model.to(accelerator or "cpu"), tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def sequence_logprobs(self, sequences: Sequences) -> list[tuple[float, ...]]:
        scores: list[tuple[float, ...]] = [()] * len(sequences)
        with torch.inference_mode():
            for batch in self._batches(sequences):
                for i, logprobs in zip(batch, self._logprobs([sequences[i] for i in batch]), strict=True):
                    scores[i] = logprobs
        return scores

    def _batches(self, sequences: Sequences) -> Iterator[list[int]]:
        """Positions of sequences that are computed together: of like length, and not too many."""
        batch: list[int] = []
        for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i][0])):
            if batch and (len(batch) + 1) * len(sequences[i][0]) > self._max_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _logprobs(self, sequences: Sequences) -> list[tuple[float, ...]]:
        assert all(1 <= prompt_length <= len(ids) for ids, prompt_length in sequences), "nothing precedes a token"
        longest = max(len(ids) for ids, _ in sequences)
        device = self._model.device
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in sequences], device=device)
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in sequences], device=device)
        logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        logprobs = logits.gather(-1, ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        rows = logprobs.tolist()
        return [
            tuple(row[prompt_length - 1 : len(ids) - 1])
            for row, (ids, prompt_length) in zip(rows, sequences, strict=True)
        ]

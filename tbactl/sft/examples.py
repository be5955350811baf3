"""From a task's text pairs to padded batches: mixing kinds, encoding, grouping by length.

Letters in shapes: B examples of a micro-batch, T tokens of its longest one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tbactl.errors import TaskError

# A task's endless stream of (prompt text, completion text) for (kind, seed); `Task.sft_examples`.
ExampleSource = Callable[[str, int], Iterator[tuple[str, str]]]

IGNORED_LABEL = -100
_MAX_CONSECUTIVE_SKIPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedExample:
    """Prompt, completion and one EOS; the loss covers everything after the first `prompt_length` tokens."""

    token_ids: tuple[int, ...]
    prompt_length: int


def mixed_texts(source: ExampleSource, *, mixture: Mapping[str, float], seed: int) -> Iterator[tuple[str, str]]:
    """Endless text pairs; the kind of each is drawn with the probabilities of `mixture`, which need not sum to 1."""
    kinds = sorted(kind for kind, share in mixture.items() if share > 0)
    streams = {kind: source(kind, _derived_seed(f"{seed}/{kind}")) for kind in kinds}
    weights = [mixture[kind] for kind in kinds]
    rng = random.Random(f"{seed}/mixture")
    while True:
        yield next(streams[rng.choices(kinds, weights)[0]])


def encode_example(pair: tuple[str, str], *, tokenizer: PreTrainedTokenizerBase) -> EncodedExample:
    """Token ids of prompt + completion + EOS. Both texts are encoded apart, as an engine encodes a prompt alone."""
    prompt, completion = pair
    prompt_ids = tokenizer.encode(prompt)
    completion_ids = tokenizer.encode(completion, add_special_tokens=False)
    eos_token_id = cast(int, tokenizer.eos_token_id)
    return EncodedExample(token_ids=(*prompt_ids, *completion_ids, eos_token_id), prompt_length=len(prompt_ids))


class ExampleStream:
    """Draws the examples of one optimizer step at a time; `num_drawn` is its position and makes it resumable."""

    def __init__(
        self,
        pairs: Iterator[tuple[str, str]],
        *,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        skip: int = 0,
    ) -> None:
        self._pairs = pairs
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self.num_drawn = skip
        self.num_too_long = 0
        for _ in range(skip):
            next(pairs)

    def next_step(self, batch_tokens: int) -> list[EncodedExample]:
        """The next examples, as many as it takes to reach `batch_tokens` tokens.

        Raises:
            TaskError: 10,000 examples in a row were longer than the limit.
        """
        examples: list[EncodedExample] = []
        num_tokens = num_skipped = 0
        while num_tokens < batch_tokens:
            example = encode_example(next(self._pairs), tokenizer=self._tokenizer)
            self.num_drawn += 1
            if len(example.token_ids) > self._max_tokens:
                self.num_too_long += 1
                num_skipped += 1
                if num_skipped >= _MAX_CONSECUTIVE_SKIPS:
                    raise TaskError(
                        f"{num_skipped} examples in a row are longer than max_tokens = {self._max_tokens}; raise it"
                    )
                continue
            num_skipped = 0
            examples.append(example)
            num_tokens += len(example.token_ids)
        return examples


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass. Padding (id 0, no label) stands on the right: causal attention never sees it, without a mask.

    `labels[b, t]` is the token that follows position t, or IGNORED_LABEL on the prompt and on padding.
    """

    input_ids: Tensor  # int64, B T
    labels: Tensor  # int64, B T
    # Positions before this one are prompt in every example: no logits are needed there.
    first_label: int


def micro_batches(examples: list[EncodedExample], *, max_tokens: int) -> list[MicroBatch]:
    """Cut a step's examples into passes of at most `max_tokens` padded tokens (at least one example), by length."""
    groups: list[list[EncodedExample]] = []
    for example in sorted(examples, key=lambda example: len(example.token_ids), reverse=True):
        if not groups or (len(groups[-1]) + 1) * len(groups[-1][0].token_ids) > max_tokens:
            groups.append([])
        groups[-1].append(example)
    return [_collate(group) for group in groups]


def _collate(examples: list[EncodedExample]) -> MicroBatch:
    shape = (len(examples), max(len(example.token_ids) for example in examples))
    input_ids = torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORED_LABEL)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.token_ids)
        input_ids[row, : len(ids)] = ids
        labels[row, example.prompt_length - 1 : len(ids) - 1] = ids[example.prompt_length :]
    return MicroBatch(
        input_ids=input_ids, labels=labels, first_label=min(example.prompt_length for example in examples) - 1
    )


def _derived_seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1

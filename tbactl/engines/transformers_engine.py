"""transformers and torch as an engine: where vLLM does not run, and as a second opinion in tests.

Requests advance together on one key/value cache. Finished rows leave it at once; new requests join by computing the
cache anew for all rows, when it is empty or at most half full.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from tbactl.config.engine import EngineConfig, parse_options
from tbactl.config.sections import Section
from tbactl.engines.policy_files import load_model_config, load_tokenizer, stop_token_ids
from tbactl.engines.stop_strings import completes_stop_string
from tbactl.protocols import FinishedRequest, GenerationRequest
from tbactl.types import Completion, FinishReason
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import held_file
from tbactl.weight_sync.weights_file import check_shapes, copy_into, mapped_weights, shapes_of


class TransformersOptions(Section):
    """`searchers.engine_options` of the engine `transformers`: it has none."""


@dataclass(slots=True)
class _Row:
    """A request and what was generated for it."""

    request: GenerationRequest
    first_version: int
    generator: torch.Generator | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """Rows that share a cache. Row i of every tensor belongs to rows[i]; prompts are padded on the left."""

    rows: list[_Row]
    cache: DynamicCache
    mask: Tensor  # [rows, cached positions]
    last_logits: Tensor  # [rows, vocabulary], float32


class TransformersEngine:
    """Batched generation with exact log-probs; implements `protocols.Engine`.

    Raises:
        ConfigError: the policy cannot be loaded or is too short, or an option is given.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.policy_version = 0
        self._config = config
        parse_options(TransformersOptions, config.options, engine="transformers")
        if config.cores:
            torch.set_num_threads(len(config.cores))
        load_model_config(config)
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._device = accelerator or torch.device("cpu")
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            config.policy_directory,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
        )
        self._model.to(self._device).eval().requires_grad_(False)
        self._tokenizer = load_tokenizer(config)
        self._stop_ids = sorted(
            stop_token_ids(config.policy_directory, self._tokenizer, trust_remote_code=config.trust_remote_code)
        )
        self._generator = torch.Generator(self._device).manual_seed(config.seed)
        self._waiting: deque[_Row] = deque()
        self._rejected: list[FinishedRequest] = []
        self._batch: _Batch | None = None

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def submit(self, request: GenerationRequest) -> None:
        error = self._config.prompt_problem(request.prompt_token_ids)
        if error is not None:
            self._rejected.append(FinishedRequest(request_id=request.request_id, completion=None, error=error))
            return
        generator = None if request.seed is None else torch.Generator(self._device).manual_seed(request.seed)
        self._waiting.append(_Row(request=request, first_version=self.policy_version, generator=generator))

    def step(self) -> list[FinishedRequest]:
        finished, self._rejected = self._rejected, []
        with torch.inference_mode():
            self._admit()
            if self._batch is not None:
                finished += self._advance(self._batch)
        return finished

    @property
    def num_unfinished(self) -> int:
        running = len(self._batch.rows) if self._batch is not None else 0
        return running + len(self._waiting) + len(self._rejected)

    def load_policy(self, weights: Path, *, version: int) -> str:
        state = self._model.state_dict()
        with held_file(weights) as held, mapped_weights(held) as (shapes, tensors):
            check_shapes(weights, found=shapes, expected=shapes_of(state))
            loaded = fingerprint(held)
            copy_into(state, tensors)
        self.policy_version = version
        return loaded

    def sequence_logprobs(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        scores = []
        for token_ids, prompt_length in sequences:
            ids = torch.tensor([token_ids], device=self._device)
            with torch.inference_mode():
                logits = self._model(input_ids=ids).logits[0, prompt_length - 1 : -1].float()
                chosen = logits.log_softmax(-1).gather(-1, ids[0, prompt_length:, None])[:, 0]
            scores.append(tuple(chosen.tolist()))
        return scores

    def close(self) -> None:
        del self._model
        self._batch = None

    def _admit(self) -> None:
        """Let waiting requests in, by computing the cache anew for everybody."""
        limit = self._config.max_concurrent_sequences
        rows = self._batch.rows if self._batch is not None else []
        if not self._waiting or len(rows) > limit // 2:
            return
        rows = [*rows, *(self._waiting.popleft() for _ in range(min(len(self._waiting), limit - len(rows))))]
        sequences = [[*row.request.prompt_token_ids, *row.token_ids] for row in rows]
        length = max(map(len, sequences))
        ids = torch.tensor([[0] * (length - len(s)) + s for s in sequences], device=self._device)
        mask = torch.tensor([[0] * (length - len(s)) + [1] * len(s) for s in sequences], device=self._device)
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(ids, mask, cache)
        self._batch = _Batch(rows=rows, cache=cache, mask=mask, last_logits=logits)

    def _advance(self, batch: _Batch) -> list[FinishedRequest]:
        """Sample one token for every row, let finished rows go, and feed the tokens of the others to the model."""
        chosen = self._sample(batch)
        finished, going_on = [], []
        for i, row in enumerate(batch.rows):
            reason = self._finish_reason(row)
            if reason is None:
                going_on.append(i)
            else:
                finished.append(self._finish(row, reason))
        if not going_on:
            self._batch = None
            return finished
        if finished:
            kept = torch.tensor(going_on, device=self._device)
            batch.rows = [batch.rows[i] for i in going_on]
            batch.cache.batch_select_indices(kept)
            batch.mask, chosen = batch.mask[kept], chosen[kept]
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(going_on), 1)], dim=1)
        batch.last_logits = self._forward(chosen[:, None], batch.mask, batch.cache)
        return finished

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _sample(self, batch: _Batch) -> Tensor:
        """Append a token and its log-prob to every row; returns the tokens."""
        logits = batch.last_logits.clone()
        settings = [row.request.sampling for row in batch.rows]
        too_short = [len(row.token_ids) < s.min_new_tokens for row, s in zip(batch.rows, settings, strict=True)]
        barred = torch.tensor(too_short, device=self._device)[:, None]
        logits[:, self._stop_ids] = logits[:, self._stop_ids].masked_fill(barred, -math.inf)
        # Greedy rows report log-probs at temperature 1.
        temperature = torch.tensor([s.temperature or 1.0 for s in settings], device=self._device)
        top_p = torch.tensor([s.top_p if s.temperature else 1.0 for s in settings], device=self._device)
        logprobs = _nucleus((logits / temperature[:, None]).log_softmax(-1), top_p)
        chosen = torch.multinomial(logprobs.exp(), 1, generator=self._generator)[:, 0]
        for i, row in enumerate(batch.rows):
            if not settings[i].temperature:
                chosen[i] = logprobs[i].argmax()
            elif row.generator is not None:
                chosen[i] = torch.multinomial(logprobs[i].exp(), 1, generator=row.generator)[0]
        picked = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
        for row, token_id, logprob in zip(batch.rows, chosen.tolist(), picked, strict=True):
            row.token_ids.append(token_id)
            row.logprobs.append(logprob)
        return chosen

    def _finish_reason(self, row: _Row) -> FinishReason | None:
        length = len(row.request.prompt_token_ids) + len(row.token_ids)
        if row.token_ids[-1] in self._stop_ids or self._completes_stop_string(row):
            return "stop"
        if len(row.token_ids) == row.request.sampling.max_new_tokens or length == self._config.max_model_tokens:
            return "length"
        return None

    def _completes_stop_string(self, row: _Row) -> bool:
        sampling = row.request.sampling
        if not sampling.stop_strings or len(row.token_ids) <= sampling.min_new_tokens:
            return False
        text, before = self._text(row.token_ids), self._text(row.token_ids[:-1])
        return completes_stop_string(text, before=before, stop_strings=sampling.stop_strings)

    def _text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _finish(self, row: _Row, reason: FinishReason) -> FinishedRequest:
        if not all(map(math.isfinite, row.logprobs)):
            error = "a log-prob is not finite"
            return FinishedRequest(request_id=row.request.request_id, completion=None, error=error)
        completion = Completion(
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            text=self._text(row.token_ids),
            finish_reason=reason,
            first_version=row.first_version,
            last_version=self.policy_version,
        )
        return FinishedRequest(request_id=row.request.request_id, completion=completion)


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Log-probs renormalised over the smallest sets of tokens whose probability reaches `top_p`.

    Args:
        logprobs: [rows, vocabulary], nats.
        top_p: [rows], in (0, 1]; 1 keeps all.
    """
    if bool((top_p == 1.0).all()):
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True)
    mass_before = ordered.exp().cumsum(-1) - ordered.exp()
    barred = (mass_before >= top_p[:, None]).scatter(-1, order, mass_before >= top_p[:, None])
    return logprobs.masked_fill(barred & (top_p < 1.0)[:, None], -math.inf).log_softmax(-1)

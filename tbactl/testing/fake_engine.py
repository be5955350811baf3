"""An engine without a model: the whole pipeline in seconds, on any machine. Deterministic for a seed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tbactl.config.engine import EngineConfig, parse_options
from tbactl.config.sections import NonNegativeFloat, Section
from tbactl.engines.stop_strings import completes_stop_string
from tbactl.protocols import FinishedRequest, GenerationRequest
from tbactl.testing.fake_policy import EOS, FakePolicy, decode_tokens, encode_text, file_fingerprint
from tbactl.testing.faults import Fault, FaultInjector
from tbactl.types import Completion, FinishReason, SamplingParams


class FakeEngineOptions(Section):
    """`searchers.engine_options` of the engine `fake`."""

    step_seconds: NonNegativeFloat = 0.0
    """Time one `step` takes at least."""
    start_seconds: NonNegativeFloat = 0.0
    """Time the constructor takes at least."""
    load_seconds: NonNegativeFloat = 0.0
    """Time `load_policy` takes at least."""
    fail_every: Annotated[int, Field(ge=0)] = 0
    """Every n-th request fails; 0: none."""
    ignore_weights: bool = False
    """Acknowledge new weights, but keep the old ones: what the probe must find out."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong, and when."""


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    rng: np.random.Generator
    first_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class FakeEngine:
    """Implements `Engine` with a `FakePolicy`. It checks what it is given as strictly as a real engine would."""

    def __init__(self, config: EngineConfig) -> None:
        self._options = parse_options(FakeEngineOptions, config.options, engine="fake")
        self._config = config
        self._faults = FaultInjector(self._options.faults)
        time.sleep(self._options.start_seconds)
        self._faults.reach("start")
        self._policy = FakePolicy.initial(config.policy_directory)
        self._rng = np.random.default_rng(config.seed)
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[_Running] = []
        self._num_submitted = 0
        self._doomed: set[str] = set()
        self._is_closed = False
        self.policy_version = 0

    def encode(self, text: str) -> tuple[int, ...]:
        """One token for each character."""
        return encode_text(text)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request."""
        assert not self._is_closed, "the engine is closed"
        known = {waiting.request_id for waiting in self._waiting} | {run.request.request_id for run in self._running}
        assert request.request_id not in known, f"request {request.request_id} was submitted twice"
        self._num_submitted += 1
        if self._options.fail_every and self._num_submitted % self._options.fail_every == 0:
            self._doomed.add(request.request_id)
        self._waiting.append(request)

    @property
    def num_unfinished(self) -> int:
        """Waiting and running requests."""
        return len(self._waiting) + len(self._running)

    def step(self) -> list[FinishedRequest]:
        """One token for every running request."""
        self._faults.reach("step")
        time.sleep(self._options.step_seconds)
        if self._faults.is_starving:
            return []
        finished = self._admit()
        still_running = []
        for running in self._running:
            reason = self._advance(running)
            if reason is None:
                still_running.append(running)
            else:
                finished.append(self._finish(running, reason))
        self._running = still_running
        return finished

    def load_policy(self, weights: Path, *, version: int) -> str:
        """Take new weights between two steps."""
        self._faults.reach("load_policy")
        time.sleep(self._options.load_seconds)
        policy, fingerprint = FakePolicy.load(weights), file_fingerprint(weights)
        if not self._options.ignore_weights:
            self._policy = policy
        self.policy_version = version
        return fingerprint

    def sequence_logprobs(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        """Exact log-probs at temperature 1."""
        table = self._policy.log_probabilities()
        return [tuple(float(table[token]) for token in token_ids[start:]) for token_ids, start in sequences]

    def close(self) -> None:
        """No request is taken any more."""
        self._is_closed = True

    def _admit(self) -> list[FinishedRequest]:
        refused = []
        while self._waiting and len(self._running) < self._config.max_concurrent_sequences:
            request = self._waiting.popleft()
            error = self._refusal(request)
            if error is not None:
                refused.append(FinishedRequest(request_id=request.request_id, completion=None, error=error))
                continue
            rng = self._rng if request.seed is None else np.random.default_rng(request.seed)
            self._running.append(_Running(request=request, rng=rng, first_version=self.policy_version))
        return refused

    def _refusal(self, request: GenerationRequest) -> str | None:
        if request.request_id in self._doomed:
            self._doomed.remove(request.request_id)
            return "injected failure of this request"
        return self._config.prompt_problem(request.prompt_token_ids)

    def _advance(self, running: _Running) -> FinishReason | None:
        sampling = running.request.sampling
        allow_eos = len(running.token_ids) >= sampling.min_new_tokens
        table = sampled_distribution(self._policy, sampling, allow_eos=allow_eos)
        if sampling.temperature == 0:
            token = int(np.argmax(table))
        else:
            token = int(running.rng.choice(len(table), p=np.exp(table)))
        running.token_ids.append(token)
        running.logprobs.append(float(table[token]))
        if token == EOS or _completes_stop_string(running):
            return "stop"
        length = len(running.request.prompt_token_ids) + len(running.token_ids)
        is_full = len(running.token_ids) >= sampling.max_new_tokens or length >= self._config.max_model_tokens
        return "length" if is_full else None

    def _finish(self, running: _Running, reason: FinishReason) -> FinishedRequest:
        completion = Completion(
            token_ids=tuple(running.token_ids),
            logprobs=tuple(running.logprobs),
            text=decode_tokens(running.token_ids),
            finish_reason=reason,
            first_version=running.first_version,
            last_version=self.policy_version,
        )
        return FinishedRequest(request_id=running.request.request_id, completion=completion)


def _completes_stop_string(running: _Running) -> bool:
    sampling, token_ids = running.request.sampling, running.token_ids
    if not sampling.stop_strings or len(token_ids) <= sampling.min_new_tokens:
        return False
    before = decode_tokens(token_ids[:-1])
    return completes_stop_string(decode_tokens(token_ids), before=before, stop_strings=sampling.stop_strings)


def sampled_distribution(policy: FakePolicy, sampling: SamplingParams, *, allow_eos: bool) -> NDArray[np.float64]:
    """Log of the distribution a token is drawn from: tempered, then cut to the nucleus and renormalised. [27], nats."""
    table = policy.log_probabilities(temperature=sampling.temperature or 1.0, allow_eos=allow_eos)
    if sampling.top_p < 1.0:
        order = np.argsort(-table, kind="stable")
        before = np.cumsum(np.exp(table[order])) - np.exp(table[order])
        table[order[before >= sampling.top_p]] = -np.inf
        table -= np.log(np.exp(table).sum())
    return table

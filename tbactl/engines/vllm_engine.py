"""vLLM as an engine, in the searcher's own process. The only module that imports vllm.

Traps that shaped it:

- Weights come through vLLM's weight-transfer extension point: writing into a live CPU model fails, its layers were
  repacked. A tied head is two parameters during a reload, so both must be given.
- vLLM cannot clear its prefix cache while requests run, and would go on serving keys and values of old weights to new
  requests. Each request's cache is therefore salted with the policy version it was submitted at.
- With enforced eager execution vLLM still compiles a small function of its sampler, which takes seconds and a compiler.
"""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from vllm import EngineArgs, LLMEngine, RequestOutput
from vllm import SamplingParams as VllmSamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensInput, tokens_input
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from tbactl.config.derived import PROBE_SEQUENCES, cpu_kv_cache_bytes, kv_token_bytes
from tbactl.config.engine import EngineConfig, parse_options
from tbactl.config.sections import PositiveInt, Section
from tbactl.engines.policy_files import load_model_config, parameter_shapes
from tbactl.errors import ChildFailedError
from tbactl.protocols import FinishedRequest, GenerationRequest
from tbactl.types import Completion
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import held_file
from tbactl.weight_sync.weights_file import check_shapes, mapped_weights

_BACKEND = "tbactl-mapped-file"
_CPU_BATCHED_TOKENS = 2048


class VllmOptions(Section):
    """`searchers.engine_options` of the engine `vllm`."""

    gpu_memory_utilization: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of the device's memory for weights and cache; None: vLLM's default. Lower it where a trainer shares it."""
    kv_cache_bytes: PositiveInt | None = None
    """Memory for keys and values. None: on a CPU what all sequences need, at most 8 GiB; on a device what is left."""
    enforce_eager: bool | None = None
    """Neither compile nor capture graphs. None: on a CPU, where compiling a small policy takes longer than it gains."""
    block_size: PositiveInt | None = None
    """Tokens in a cache block; prompts share whole blocks only. None: 32 on a CPU, else vLLM's default."""
    max_num_batched_tokens: PositiveInt | None = None
    """Tokens in one forward pass; None: vLLM's default."""
    prefix_caching: bool = True
    """Compute the prompt of a group once."""


class VllmEngine:
    """Continuous batching on CPU or GPU; implements `protocols.Engine`.

    Requests that finish while `sequence_logprobs` advances the engine are kept for the next `step`.

    Raises:
        ConfigError: an option is unknown or wrong, or the policy cannot be loaded or is too short.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.policy_version = 0
        self._config = config
        options = parse_options(VllmOptions, config.options, engine="vllm")
        if config.cores:
            torch.set_num_threads(len(config.cores))
        arguments = engine_arguments(config, options)
        # Before vLLM starts: for some architectures it changes the classes of transformers in place.
        self._shapes = parameter_shapes(config)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        preloaded = os.environ.get("LD_PRELOAD")
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        # It warns at every reload of layers that have nothing to load; what was not loaded is checked below.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        # vLLM sets it for its workers, of which there are none; those of a task would inherit it.
        _restore("LD_PRELOAD", preloaded)
        if arguments["enforce_eager"]:
            torch.compiler.set_stance("force_eager")
        self._tokenizer: Any = self._engine.get_tokenizer()
        self._first_versions: dict[str, int] = {}  # of the requests that run
        self._stashed: list[FinishedRequest] = []
        self._scores: dict[str, tuple[float, ...] | None] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def submit(self, request: GenerationRequest) -> None:
        assert request.request_id not in self._first_versions, request.request_id
        error = self._config.prompt_problem(request.prompt_token_ids)
        if error is None:
            try:
                self._engine.add_request(
                    request.request_id, self._prompt(request.prompt_token_ids), self._sampling(request)
                )
                self._first_versions[request.request_id] = self.policy_version
            except (ValueError, VLLMValidationError) as refusal:  # a token id out of range, say
                error = str(refusal)
        if error is not None:
            self._stashed.append(FinishedRequest(request_id=request.request_id, completion=None, error=error))

    def step(self) -> list[FinishedRequest]:
        finished, self._stashed = self._stashed, []
        if self._first_versions:
            finished += self._advance()
        return finished

    @property
    def num_unfinished(self) -> int:
        return len(self._first_versions) + len(self._stashed)

    def load_policy(self, weights: Path, *, version: int) -> str:
        with held_file(weights) as held:
            with mapped_weights(held) as (shapes, _):
                check_shapes(weights, found=shapes, expected=self._shapes)
            loaded = fingerprint(held)
            try:
                self._engine.collective_rpc("start_weight_update")
                self._engine.collective_rpc("update_weights", args=({"path": str(held)},))
                self._engine.collective_rpc("finish_weight_update")
            except Exception as error:
                raise ChildFailedError(f"vLLM cannot load {weights.name}: {type(error).__name__}: {error}") from error
        self.policy_version = version
        return loaded

    def sequence_logprobs(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        names = [f"score-{i}" for i in range(len(sequences))]
        sampling = VllmSamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for name, (token_ids, _) in zip(names, sequences, strict=True):
            self._scores[name] = None
            self._engine.add_request(name, self._prompt(token_ids), sampling)
        while any(self._scores[name] is None for name in names):
            self._stashed += self._advance()
        scores = [self._scores.pop(name) for name in names]
        # vLLM scores from the second token on.
        return [
            score[prompt_length - 1 :]
            for score, (_, prompt_length) in zip(scores, sequences, strict=True)
            if score is not None
        ]

    def close(self) -> None:
        self._engine.engine_core.shutdown()
        del self._engine
        gc.collect()
        cleanup_dist_env_and_memory()

    def _prompt(self, token_ids: tuple[int, ...]) -> TokensInput:
        return tokens_input(list(token_ids), cache_salt=f"version-{self.policy_version}")

    def _sampling(self, request: GenerationRequest) -> VllmSamplingParams:
        sampling = request.sampling
        is_greedy = sampling.temperature == 0.0
        return VllmSamplingParams(
            max_tokens=min(sampling.max_new_tokens, self._config.max_model_tokens - len(request.prompt_token_ids)),
            min_tokens=sampling.min_new_tokens,
            stop=list(sampling.stop_strings) or None,
            include_stop_str_in_output=True,
            temperature=sampling.temperature,
            top_p=1.0 if is_greedy else sampling.top_p,
            seed=None if is_greedy else request.seed,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            # Once at the end is cheaper than at every token, where stop strings are looked for.
            detokenize=bool(sampling.stop_strings),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _advance(self) -> list[FinishedRequest]:
        finished = []
        for output in self._engine.step():
            assert isinstance(output, RequestOutput)
            if output.request_id in self._scores:
                self._scores[output.request_id] = tuple(_flat(output.prompt_logprobs))
            elif output.finished:
                finished.append(self._finish(output))
        return finished

    def _finish(self, output: RequestOutput) -> FinishedRequest:
        first_version = self._first_versions.pop(output.request_id)
        answer = output.outputs[0]
        token_ids, logprobs = tuple(answer.token_ids), tuple(_flat(answer.logprobs))
        error = None
        if answer.finish_reason not in ("stop", "length"):
            error = f"vLLM ended the request: {answer.finish_reason}"
        elif len(token_ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            error = f"{len(token_ids)} tokens with {len(logprobs)} log-probs, or one that is not finite"
        if error is not None:
            return FinishedRequest(request_id=output.request_id, completion=None, error=error)
        completion = Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=self._tokenizer.decode(token_ids, skip_special_tokens=True),
            finish_reason="stop" if answer.finish_reason == "stop" else "length",
            first_version=first_version,
            last_version=self.policy_version,
        )
        return FinishedRequest(request_id=output.request_id, completion=completion)


def engine_arguments(config: EngineConfig, options: VllmOptions) -> dict[str, Any]:
    """What vLLM is told."""
    is_cpu = current_platform.is_cpu()
    model_config = load_model_config(config)
    max_num_seqs = config.max_concurrent_sequences + PROBE_SEQUENCES
    kv_cache_bytes = options.kv_cache_bytes
    if kv_cache_bytes is None and is_cpu:
        kv_cache_bytes = _kv_cache_bytes(model_config, config)
    arguments = {
        "model": str(config.policy_directory),
        "dtype": config.dtype,
        "seed": config.seed,
        "trust_remote_code": config.trust_remote_code,
        "max_model_len": config.max_model_tokens + 1,
        "max_num_seqs": max_num_seqs,
        # Of the distribution that was sampled from: after temperature, nucleus and minimum length.
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": is_cpu if options.enforce_eager is None else options.enforce_eager,
        "enable_prefix_caching": options.prefix_caching,
        "weight_transfer_config": WeightTransferConfig(backend=_BACKEND),
        "disable_log_stats": True,
        "kv_cache_memory_bytes": kv_cache_bytes,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "block_size": options.block_size or (32 if is_cpu else None),
        "max_num_batched_tokens": options.max_num_batched_tokens,
    }
    if is_cpu:
        # A prompt split over two steps rewinds the generator of a seeded request, which a CPU generator cannot do.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(
            options.max_num_batched_tokens or _CPU_BATCHED_TOKENS, config.max_model_tokens + 1
        )
    return {name: value for name, value in arguments.items() if value is not None}


def _kv_cache_bytes(model_config: Any, config: EngineConfig) -> int:
    """Keys and values of all sequences at full length, within bounds."""
    num_heads = model_config.num_attention_heads
    head_size = getattr(model_config, "head_dim", None) or model_config.hidden_size // num_heads
    token_bytes = kv_token_bytes(
        num_layers=model_config.num_hidden_layers,
        num_key_value_heads=getattr(model_config, "num_key_value_heads", None) or num_heads,
        head_size=head_size,
        dtype=config.dtype,
    )
    return cpu_kv_cache_bytes(
        token_bytes=token_bytes,
        max_concurrent_sequences=config.max_concurrent_sequences,
        max_model_tokens=config.max_model_tokens,
    )


def _flat(logprobs: Any) -> list[float]:
    return logprobs.logprobs if logprobs is not None else []


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@dataclass
class _NoInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the file is on this machine."""


@dataclass
class _FileInfo(WeightTransferUpdateInfo):
    """Which file to load."""

    path: str


class MappedFileTransfer(WeightTransferEngine[_NoInitInfo, _FileInfo]):
    """vLLM's extension point for new weights, fed from a mapped safetensors file."""

    init_info_cls = _NoInitInfo
    update_info_cls = _FileInfo

    def init_transfer_engine(self, init_info: _NoInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _FileInfo) -> None:
        expected = {name for name, _ in self.model.named_parameters()}
        with mapped_weights(Path(update_info.path)) as (_, weights), torch.device(self.device):
            loaded = self.model.load_weights(weights)  # pyright: ignore[reportCallIssue]
        if loaded is not None and (left := sorted(expected - loaded)):  # vLLM itself would keep their old values
            raise ValueError(f"{len(left)} engine parameters were not written, the first of them {left[0]}")

    def finish_weight_update(self) -> None:
        with torch.device(self.device):
            finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


WeightTransferEngineFactory.register_engine(_BACKEND, MappedFileTransfer)

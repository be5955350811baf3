"""What each device, or the one machine, holds. Weights, gradients and optimizer are exact; activations are rough.

Without devices the interpreter and the libraries of each process count as well: as measured on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from tbactl.config.derived import (
    cpu_kv_cache_bytes,
    group_tokens,
    kv_token_bytes,
    searchers_here,
    sequence_tokens,
    shared_memory_bytes,
)
from tbactl.config.sections import RunConfig
from tbactl.planning.hardware import ModelSection

GIB, MIB = 2**30, 2**20
BYTES = {"float32": 4, "bfloat16": 2}
# AdamW's two averages in float32, and the float32 weights that DeepSpeed keeps beside them.
AVERAGES_BYTES, MASTER_BYTES = 8, 4
# Stages at which the policy's own weights serve where they are float32; 1 and 2 copy them whatever their type is.
STAGES_WITHOUT_COPY = (0, 3)
# Of one layer and token, in units of hidden_size elements: arXiv 2205.05198, section 4.1, without the attention matrix,
# which flash attention does not keep. 34 bytes there, in 2-byte elements.
ACTIVATION_ELEMENTS = 17
# One in float32, over which everything is written, and the head's own output or its gradient in bfloat16.
LOGIT_COPIES = 1.5
# Resident memory of a process on a CPU without what is counted by itself: the peaks of docs/performance.md less that
# run's weights, gradients, optimizer, activations and cache; of the fakes, after the imports.
PROCESS_BYTES = {"vllm": 1200 * MIB, "deepspeed": 950 * MIB, "fake": 50 * MIB}
# Other engines and learners import torch and transformers too: as the trainer.
OTHER_PROCESS_BYTES = PROCESS_BYTES["deepspeed"]
SUPERVISOR_BYTES = 50 * MIB
# What stands here for a searcher on another machine: our own code and Ray, after the imports.
BRIDGE_BYTES = 100 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by what they are for."""

    trainer: dict[str, float]
    """Of one rank."""
    searcher: dict[str, float]
    """Of one searcher."""
    shared: float
    """In /dev/shm."""

    @property
    def trainer_bytes(self) -> float:
        """Of one rank in all."""
        return sum(self.trainer.values())

    @property
    def searcher_bytes(self) -> float:
        """Of one searcher in all."""
        return sum(self.searcher.values())


def memory_of(run: RunConfig, *, model: ModelSection, has_devices: bool = True) -> Memory:
    """Memory of a run's processes; what the task's own models take is not in it.

    Args:
        run: the configuration.
        model: the policy's shape.
        has_devices: each process has a device, whose memory is meant. Otherwise the machine's, with libraries.
    """
    element = BYTES[run.policy.dtype]
    cache_bytes = kv_cache_bytes(run, model=model) if has_devices else allocated_cache_bytes(run, model=model)
    searcher = {"weights": model.num_parameters * element, "KV cache": cache_bytes}
    trainer = trainer_bytes(run, model=model)
    if not has_devices:
        searcher = {"libraries": process_bytes(run.searchers.engine)} | searcher
        trainer = {"libraries": process_bytes(run.trainer.kind)} | trainer
    num_published = model.num_parameters + model.tied_embeddings * model.vocabulary_size * model.hidden_size
    return Memory(
        trainer=trainer,
        searcher=searcher,
        shared=shared_memory_bytes(run, policy_bytes=num_published * element),
    )


def trainer_bytes(run: RunConfig, *, model: ModelSection) -> dict[str, float]:
    """Of one rank. ZeRO (arXiv 1910.02054) divides the optimizer from stage 1 on, gradients from 2, weights from 3."""
    trainer = run.trainer
    element = BYTES[run.policy.dtype]
    shares = [trainer.num_ranks if trainer.zero_stage >= stage else 1 for stage in (1, 2, 3)]
    num_trained = trained_parameters(run, model=model)
    num_frozen = model.num_parameters if run.policy.lora_rank else 0
    num_reference = 0 if run.policy.lora_rank else model.num_parameters
    return {
        "weights": (num_trained + num_frozen) * element / shares[2],
        "gradients": num_trained * element / shares[1],
        "optimizer": num_trained * optimizer_bytes_per_parameter(run) / shares[0],
        "reference": num_reference * element,
        "activations": activation_bytes(run, model=model),
        "log-prob chunk": LOGIT_COPIES * 4 * trainer.logprob_chunk_tokens * model.vocabulary_size,
    }


def optimizer_bytes_per_parameter(run: RunConfig) -> int:
    """The averages, and float32 weights unless the policy's own can be updated in place."""
    updates_in_place = run.policy.dtype == "float32" and run.trainer.zero_stage in STAGES_WITHOUT_COPY
    return AVERAGES_BYTES if updates_in_place else AVERAGES_BYTES + MASTER_BYTES


def process_bytes(kind: str) -> float:
    """Of a process with this engine or learner on a CPU, before it has a model."""
    return PROCESS_BYTES.get(kind, OTHER_PROCESS_BYTES)


def trained_parameters(run: RunConfig, *, model: ModelSection) -> float:
    """All, or with adapters about 2 * rank * hidden_size for each of a layer's seven projections."""
    if not run.policy.lora_rank:
        return model.num_parameters
    return model.num_layers * 7 * 2 * run.policy.lora_rank * model.hidden_size


def activation_bytes(run: RunConfig, *, model: ModelSection) -> float:
    """Kept from forward to backward for the largest pass; with gradient checkpointing one layer and all inputs."""
    tokens = max(run.trainer.micro_batch_tokens, group_tokens(run))
    layer = tokens * model.hidden_size * BYTES[run.policy.dtype]
    if run.trainer.gradient_checkpointing:
        return layer * (model.num_layers + ACTIVATION_ELEMENTS)
    return layer * model.num_layers * ACTIVATION_ELEMENTS


def kv_bytes_per_token(run: RunConfig, model: ModelSection) -> int:
    """Keys and values of one token in all layers."""
    return kv_token_bytes(
        num_layers=model.num_layers,
        num_key_value_heads=model.num_key_value_heads,
        head_size=model.head_size,
        dtype=run.policy.dtype,
    )


def kv_cache_bytes(run: RunConfig, *, model: ModelSection) -> float:
    """For all groups in flight at full length, the prompt of a group once."""
    searchers = run.searchers
    tokens = searchers.max_prompt_tokens + searchers.num_completions * searchers.max_new_tokens
    return searchers.max_concurrent_groups * tokens * kv_bytes_per_token(run, model)


def allocated_cache_bytes(run: RunConfig, *, model: ModelSection) -> float:
    """On a CPU: vLLM takes all at its start, as `searchers.engine_options` says or as the engine reckons."""
    searchers = run.searchers
    if searchers.engine != "vllm":
        return kv_cache_bytes(run, model=model)
    given = searchers.engine_options.get("kv_cache_bytes")
    if isinstance(given, int):
        return given
    return cpu_kv_cache_bytes(
        token_bytes=kv_bytes_per_token(run, model),
        max_concurrent_sequences=searchers.max_concurrent_groups * searchers.num_completions,
        max_model_tokens=sequence_tokens(run),
    )


def machine_bytes(run: RunConfig, *, memory: Memory) -> float:
    """Of all processes on this machine: supervisor, ranks, searchers or what stands for those elsewhere, /dev/shm."""
    num_searchers, num_here = run.searchers.num_searchers, searchers_here(run)
    searchers = num_here * memory.searcher_bytes + (num_searchers - num_here) * BRIDGE_BYTES
    return SUPERVISOR_BYTES + run.trainer.num_ranks * memory.trainer_bytes + searchers + memory.shared


def memory_warnings(run: RunConfig, *, memory: Memory, limit_gib: float | None, shares_one: bool) -> list[str]:
    """What will not fit, one sentence each.

    Args:
        run: the configuration.
        memory: of its processes.
        limit_gib: of a device, or of the machine; None: nothing is known.
        shares_one: all processes live in one memory, without devices.
    """
    if limit_gib is None:
        return []
    limit = limit_gib * GIB
    if shares_one:
        total = machine_bytes(run, memory=memory)
        return [f"{_gib(total)} do not fit into the machine's {limit_gib:g} GiB."] if total > limit else []
    warnings = []
    if memory.trainer_bytes > limit:
        warnings.append(
            f"a trainer rank needs about {_gib(memory.trainer_bytes)}, a device has {limit_gib:g} GiB: raise "
            f"trainer.zero_stage or num_ranks, lower trainer.micro_batch_tokens, or set trainer.gradient_checkpointing."
        )
    weights = memory.searcher["weights"]
    if weights > limit:
        warnings.append(f"a searcher's weights need {_gib(weights)}, a device has {limit_gib:g} GiB.")
    elif memory.searcher_bytes > limit:
        warnings.append(
            f"a searcher needs {_gib(memory.searcher_bytes)} when all its groups reach full length, a device has "
            f"{limit_gib:g} GiB: some would wait; lower searchers.max_concurrent_groups."
        )
    return warnings


def shared_memory_warnings(memory: Memory, *, limit_gib: float | None) -> list[str]:
    """Whether /dev/shm is large enough."""
    if limit_gib is None or memory.shared <= limit_gib * GIB:
        return []
    return [
        f"/dev/shm needs {_gib(memory.shared)} and has {limit_gib:g} GiB: lower searchers.ring_capacity_bytes or the "
        f"number of searchers."
    ]


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"

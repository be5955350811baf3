"""The policy out of DeepSpeed's shards, ZeRO stage 0 to 3, without DeepSpeed.

Stages 0 to 2 keep the whole module in one file. Under stage 3 each rank holds a slice of every parameter: of n elements
on r ranks each has ceil(n / r), the last ones filled up; the slices of all parameters follow one another in that rank's
flat float32 master copy, in the order of `param_shapes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tbactl.adapters import Adapter
from tbactl.errors import CheckpointError

FACTS_FILE = "learner.json"
POLICY_CONFIG = "policy_config"
SHARDS = "deepspeed"
# The trained module is the scoring model, which holds the policy under this name.
PREFIX = "policy."
# What the scoring model holds besides: a learned log Z, which belongs to training alone.
LOG_Z_PREFIX = "log_z_head."
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

MODULE_FILE = "mp_rank_00_model_states.pt"
STAGE_3_MODULE_FILE = "zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
OPTIMIZER_FILES = (
    "bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
    "zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
)


class _Ignored:
    """Stands for DeepSpeed's own classes in its files: nothing of theirs is needed, and none of their code runs."""

    def __init__(self, *arguments: object) -> None:
        del arguments

    def __setstate__(self, state: object) -> None:
        del state


IGNORED_CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.utils.tensor_fragment.tensor_fragment",
)


def consolidate(learner: Path, output: Path) -> None:
    """Write the policy of a learner's directory in Hugging Face form.

    Args:
        learner: `learner/` of a checkpoint.
        output: is created; config and tokenizer come from the checkpoint, weights from the shards.

    Raises:
        CheckpointError: a file or a parameter is missing or damaged, or one is too many.
    """
    facts = _facts(learner)
    shards = learner / SHARDS
    weights = (
        _stage_3_weights(shards, num_ranks=int(facts["num_ranks"]))
        if facts["zero_stage"] == 3
        else dict(_load(shards / MODULE_FILE)["module"])
    )
    dtype = DTYPES[facts["dtype"]]
    plain = {
        name.removeprefix(PREFIX): tensor.to(dtype)
        for name, tensor in weights.items()
        if not name.startswith(LOG_Z_PREFIX)
    }
    if facts.get("adapters"):
        plain = _without_adapters(plain, facts["adapters"], shards=shards)
    config = AutoConfig.from_pretrained(str(learner / POLICY_CONFIG))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    missing = _load_strictly(model, plain)
    if missing:
        raise CheckpointError(f"{shards}: {missing}; the checkpoint does not hold the whole policy.")
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(str(learner / POLICY_CONFIG)).save_pretrained(output)


def _without_adapters(plain: dict[str, Tensor], facts: dict[str, Any], *, shards: Path) -> dict[str, Tensor]:
    """Merge what peft calls X.lora_A, X.lora_B into X.base_layer, and call that X."""
    merged = dict(plain)
    for target in facts["targets"]:
        layer, _, last = target.rpartition(".")
        try:
            adapter = Adapter(
                a=merged.pop(f"{layer}.lora_A.default.{last}"),
                b=merged.pop(f"{layer}.lora_B.default.{last}"),
                scaling=facts["scaling"],
                is_transposed=target in facts["transposed"],
            )
            merged[target] = adapter.merged_into(merged.pop(f"{layer}.base_layer.{last}"))
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{shards}: the adapter of {target} is not whole: {error}.") from error
        bias = merged.pop(f"{layer}.base_layer.bias", None)
        if bias is not None:
            merged[f"{layer}.bias"] = bias
    return merged


def _load_strictly(model: torch.nn.Module, weights: dict[str, Tensor]) -> str:
    """Load; tied parameters may be there once. Returns what does not fit, or an empty string."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    for names in groups.values():
        source = next((name for name in names if name in weights), None)
        if source is not None:
            weights |= {name: weights[source] for name in names if name not in weights}
    try:
        outcome = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # a shape
        return str(error)
    problems = [("missing", outcome.missing_keys), ("unknown", outcome.unexpected_keys)]
    return "; ".join(f"{kind}: {', '.join(sorted(names)[:5])}" for kind, names in problems if names)


def _facts(learner: Path) -> dict[str, Any]:
    path = learner / FACTS_FILE
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error


def _stage_3_weights(shards: Path, *, num_ranks: int) -> dict[str, Tensor]:
    head = _load(shards / STAGE_3_MODULE_FILE.format(rank=0))
    flats = [_flat_groups(shards, rank) for rank in range(num_ranks)]
    weights: dict[str, Tensor] = {}
    for group, shapes in enumerate(head["param_shapes"]):
        parts = [flat[group] for flat in flats]
        offset = 0
        for name, shape in shapes.items():
            slice_elements = math.ceil(math.prod(shape) / num_ranks)
            weights[name] = _joined([part[offset : offset + slice_elements] for part in parts], shape)
            offset += slice_elements
        if any(offset > len(part) for part in parts):
            raise CheckpointError(
                f"{shards}: parameters of {offset:,} elements in shards of {len(parts[0]):,}; damaged."
            )
    weights |= _frozen_weights(shards, head, num_ranks=num_ranks)
    weights |= {name: head["module"][name] for name in head.get("buffer_names", []) if name in head["module"]}
    weights |= {
        alias: weights[name] for alias, name in dict(head.get("shared_params") or {}).items() if name in weights
    }
    return weights


def _frozen_weights(shards: Path, head: dict[str, Any], *, num_ranks: int) -> dict[str, Tensor]:
    """Parameters that are not trained have no master copy: each rank keeps its slices of them beside the module."""
    shapes = dict(head.get("frozen_param_shapes") or {})
    if not shapes:
        return {}
    files = [_load(shards / STAGE_3_MODULE_FILE.format(rank=rank)) for rank in range(num_ranks)]
    return {
        name: _joined([file["frozen_param_fragments"][name] for file in files], shape) for name, shape in shapes.items()
    }


def _joined(slices: list[Tensor], shape: torch.Size) -> Tensor:
    """A parameter from the ranks' slices, the last of which are filled up."""
    return torch.cat(slices)[: math.prod(shape)].reshape(tuple(shape)).clone()


def _flat_groups(shards: Path, rank: int) -> list[Tensor]:
    """A rank's float32 master copy, one flat tensor for each parameter group."""
    for pattern in OPTIMIZER_FILES:
        path = shards / pattern.format(rank=rank)
        if path.is_file():
            flats = _load(path)["optimizer_state_dict"]["fp32_flat_groups"]
            return [torch.cat([t.flatten() for t in flat]) if isinstance(flat, list) else flat for flat in flats]
    raise CheckpointError(f"{shards}: no optimizer shard of rank {rank}; the checkpoint is incomplete.")


def _load(path: Path) -> dict[str, Any]:
    try:
        with _inert_classes():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete.") from None
    except Exception as error:  # zipfile, pickle and torch all have their own
        raise CheckpointError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error


@contextmanager
def _inert_classes() -> Iterator[None]:
    with torch.serialization.safe_globals([(_Ignored, name) for name in IGNORED_CLASSES]):
        yield

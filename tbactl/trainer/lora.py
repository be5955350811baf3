"""Low-rank adapters through peft: put into the policy, switched off for the reference, written in peft's form.

The model stays what it was, a `PreTrainedModel`: peft replaces its linear layers in place. Its parameters are the same
objects as before, so that names taken beforehand go on naming them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tbactl.adapters import Adapter
from tbactl.config.sections import PolicySection
from tbactl.errors import ChildFailedError, ConfigError
from tbactl.weight_sync.adapter_file import BaseWeights
from tbactl.weight_sync.weights_file import write_safetensors

ALL_LINEAR = "all-linear"
_ADAPTER = "default"
_PEFT_PREFIX = "base_model.model."
_FEW_ELEMENTS = 256


class LoraAdapters:
    """Adapters on the linear layers of a policy; everything else is frozen.

    B is zero at first, so the policy begins as the base policy exactly. No dropout: log-probs must be a function of the
    weights.

    Args:
        model: gets the adapters, in place. A is drawn from torch's random state.
        section: rank, alpha, which layers.
        base: directory or hub name of the policy; noted beside exported adapters.

    Raises:
        ConfigError: a target is no linear layer, or the head, or does not exist.
    """

    def __init__(self, model: PreTrainedModel, section: PolicySection, *, base: Path) -> None:
        targets = target_layers(model, section.lora_target_modules)
        weights = {name: model.get_parameter(f"{name}.weight") for name in targets}
        transposed = {name for name in targets if isinstance(model.get_submodule(name), Conv1D)}
        self._config = LoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(base),
            r=section.lora_rank,
            lora_alpha=section.lora_alpha,  # pyright: ignore[reportArgumentType] (a float does as well)
            lora_dropout=0.0,
            target_modules=targets,
            fan_in_fan_out=bool(transposed),
        )
        inject_adapter_in_model(self._config, model, adapter_name=_ADAPTER)
        self._layers: dict[str, LoraLayer] = {}
        self._layer_of: dict[int, str] = {}
        for name, weight in weights.items():
            layer = model.get_submodule(name)
            assert isinstance(layer, LoraLayer)
            assert layer.get_base_layer().weight is weight
            self._layers[name] = layer
            self._layer_of[id(weight)] = name
        self._transposed = transposed
        trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        assert trainable == {id(part) for weight in weights.values() for part in self.parts(weight)}
        self.scaling = section.lora_alpha / section.lora_rank

    def parts(self, weight: Tensor) -> tuple[torch.nn.Parameter, ...]:
        """A and B of a weight; nothing where it has no adapter."""
        name = self._layer_of.get(id(weight))
        if name is None:
            return ()
        layer = self._layers[name]
        return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight  # pyright: ignore[reportReturnType]

    def adapter(self, weight: Tensor) -> Adapter | None:
        """A copy of a weight's adapter on the CPU, or None. Under ZeRO-3 its parts have to be gathered around this."""
        parts = self.parts(weight)
        if not parts:
            return None
        a, b = (part.detach().cpu().clone() for part in parts)
        return Adapter(a=a, b=b, scaling=self.scaling, is_transposed=self._layer_of[id(weight)] in self._transposed)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is the base policy: exactly, since adapters are left out of the computation."""
        self._switch_off(True)
        try:
            yield
        finally:
            self._switch_off(False)

    def _switch_off(self, is_off: bool, /) -> None:
        for layer in self._layers.values():
            # peft's own enable_adapters also switches requires_grad, which DeepSpeed has based its hooks on.
            layer._disable_adapters = is_off
            assert layer.disable_adapters == is_off

    def facts(self, names: Mapping[str, Tensor]) -> dict[str, object]:
        """What a checkpoint notes of the adapters, to merge them without peft and to refuse other settings.

        Args:
            names: the policy's parameters.
        """
        adapted = {name: self._layer_of[id(tensor)] for name, tensor in names.items() if id(tensor) in self._layer_of}
        return {
            "rank": self._config.r,
            "scaling": self.scaling,
            "targets": sorted(adapted),
            "transposed": sorted(name for name, layer in adapted.items() if layer in self._transposed),
        }

    def export(self, directory: Path, adapters: Mapping[str, Adapter]) -> None:
        """Write them in the form that `peft.PeftModel.from_pretrained` loads.

        Args:
            directory: is created.
            adapters: by the names of the weights.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._config.save_pretrained(str(directory))
        tensors: dict[str, Tensor] = {}
        for name, adapter in adapters.items():
            layer = name.removesuffix(".weight")
            tensors[f"{_PEFT_PREFIX}{layer}.lora_A.weight"] = adapter.a
            tensors[f"{_PEFT_PREFIX}{layer}.lora_B.weight"] = adapter.b
        write_safetensors(directory / SAFETENSORS_WEIGHTS_NAME, tensors, metadata={"format": "pt"})


def target_layers(model: PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """Full names of the layers that get adapters.

    Args:
        model: without adapters.
        wanted: `all-linear`, or names of layers, whole or their last parts (`q_proj`, `attn.c_proj`).

    Raises:
        ConfigError: one of them is no linear layer, or the head, or does not exist.
    """
    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    linear = [
        name for name, module in modules.items() if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    ]
    kind = type(model).__name__
    if not linear:
        raise ConfigError(
            f"policy.lora_rank: {kind} has no linear layers that adapters could be put on; train all weights "
            f"(policy.lora_rank = 0)."
        )
    if tuple(wanted) == (ALL_LINEAR,):
        return linear
    chosen: set[str] = set()
    for target in wanted:
        matching = _named(linear, target)
        if not matching:
            problem = "is not a linear layer, or the head" if _named(modules, target) else "does not exist"
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ConfigError(
                f"policy.lora_target_modules: '{target}' {problem} in {kind}; its linear layers are {known}; "
                f"'{ALL_LINEAR}' stands for all of them."
            )
        chosen.update(matching)
    return [name for name in linear if name in chosen]


def _named(names: Sequence[str] | Mapping[str, object], target: str) -> list[str]:
    return [name for name in names if name == target or name.endswith(f".{target}")]


def base_sources(names: Mapping[str, Tensor], *, policy: Path) -> dict[str, str]:
    """Where in the policy's files searchers find what adapters are merged into.

    Files may hold a parameter under another name than the model (an older one, or without the prefix of the bare
    transformer), and tied ones once. So what counts is the value: any tensor equal to the parameter will do.

    Args:
        names: the policy's parameters at the start.
        policy: its directory, or a hub name.

    Returns:
        Name of each parameter -> name in the files.

    Raises:
        ConfigError: there are no such files, or a parameter is not in them.
    """
    try:
        base = BaseWeights(policy)
    except ChildFailedError as error:
        raise ConfigError(f"sync.weights = adapter: {error}") from error
    sources: dict[str, str] = {}
    for name, tensor in names.items():
        candidates = [name, *sorted(base.names)] if name in base.names else sorted(base.names)
        source = next((candidate for candidate in candidates if _equals(base.tensor(candidate), tensor)), None)
        if source is None:
            raise ConfigError(
                f"sync.weights = adapter: the weights files of '{policy}' do not hold {name} as the policy has it; "
                f"searchers could not merge adapters into them. Use sync.weights = merged."
            )
        sources[name] = source
    return sources


def _equals(stored: Tensor, parameter: Tensor) -> bool:
    """Whether a parameter is what is stored, in its own type. Most others differ at once, in their first elements."""
    if stored.shape != parameter.shape:
        return False
    few, own = slice(_FEW_ELEMENTS), parameter.detach().cpu()
    is_alike = torch.equal(stored.flatten()[few].to(own.dtype), own.flatten()[few])
    return is_alike and torch.equal(stored.to(own.dtype), own)

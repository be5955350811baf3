"""The policy's weights out of DeepSpeed's hands: whole, by the policy's own names, adapters merged or apart."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from tbactl.adapters import Adapter
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend
from tbactl.trainer.lora import LoraAdapters


class WeightCollector:
    """Copies weights to the CPU. All ranks call every method; rank 0 gets the copies, the others nothing.

    Under ZeRO-3 parameters are gathered one by one, so that no rank ever holds all of them at once.

    Args:
        names: the policy's state dict as it was before it got adapters; tied names share one tensor.
        adapters: the policy's, if it has any.
        backend: gathers.
        is_leader: rank 0.
    """

    def __init__(
        self, names: Mapping[str, Tensor], *, adapters: LoraAdapters | None, backend: DeepSpeedBackend, is_leader: bool
    ) -> None:
        self._names = names
        self._adapters = adapters
        self._backend = backend
        self._is_leader = is_leader

    def whole(self) -> dict[str, Tensor]:
        """The state dict with adapters merged, on the CPU. Tied names share one tensor."""
        weights: dict[str, Tensor] = {}
        copies: dict[int, Tensor] = {}
        for name, tensor in self._names.items():
            with self._gathered(tensor):
                if self._is_leader:
                    if id(tensor) not in copies:
                        copies[id(tensor)] = self._effective(tensor)
                    weights[name] = copies[id(tensor)]
        return weights

    def adapters(self) -> dict[str, Adapter]:
        """Adapters by the names of the weights that they change."""
        assert self._adapters is not None
        adapters: dict[str, Adapter] = {}
        for name, tensor in self._names.items():
            with self._backend.whole_parameters(self._adapters.parts(tensor)):
                adapter = self._adapters.adapter(tensor) if self._is_leader else None
            if adapter is not None:
                adapters[name] = adapter
        return adapters

    def _gathered(self, tensor: Tensor) -> AbstractContextManager[None]:
        parameters = [tensor] if isinstance(tensor, torch.nn.Parameter) else []
        parts = self._adapters.parts(tensor) if self._adapters is not None else ()
        return self._backend.whole_parameters([*parameters, *parts])

    def _effective(self, tensor: Tensor) -> Tensor:
        weight = tensor.detach().cpu().clone()
        adapter = self._adapters.adapter(tensor) if self._adapters is not None else None
        return weight if adapter is None else adapter.merged_into(weight)

"""Keys and values of prompts, computed once for each group and read by all of its completions.

Unlike transformers' own caches these never change what they hold: calling a layer a second time gives the same again.
So a backward pass may recompute layers (`recompute.py`), which would append to an ordinary cache twice.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

KeysOrValues = Float[Tensor, "rows heads length size"]


class PromptCache(Cache):
    """Filled by a pass over the prompts, one row for each group."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_PromptLayer)

    def continued(self, row_group: Int[Tensor, " rows"]) -> Cache:
        """The cache of a pass over completions: row i follows on the prompt of group `row_group[i]`."""
        return Cache(layers=[_ContinuedLayer(layer, row_group) for layer in self.layers])


class _Layer(CacheLayerMixin):
    """What models ask of any layer of a cache."""

    def lazy_initialization(self, key_states: KeysOrValues, value_states: KeysOrValues) -> None:
        raise AssertionError("a layer is filled by `update`")

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class _PromptLayer(_Layer):
    is_sliding = False

    def update(
        self, key_states: KeysOrValues, value_states: KeysOrValues, *args: Any, **kwargs: Any
    ) -> tuple[KeysOrValues, KeysOrValues]:
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


class _ContinuedLayer(_Layer):
    is_sliding = False

    def __init__(self, prompts: Any, row_group: Int[Tensor, " rows"]) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = prompts.keys, prompts.values, True
        self._row_group = row_group

    def update(
        self, key_states: KeysOrValues, value_states: KeysOrValues, *args: Any, **kwargs: Any
    ) -> tuple[KeysOrValues, KeysOrValues]:
        assert self.keys is not None and self.values is not None
        # Expanded here and not before, so that a layer that is recomputed keeps no expanded copy.
        return (
            torch.cat([self._for_each_row(self.keys), key_states], dim=-2),
            torch.cat([self._for_each_row(self.values), value_states], dim=-2),
        )

    def _for_each_row(self, of_prompts: KeysOrValues) -> KeysOrValues:
        if len(of_prompts) == 1:
            # The same numbers as below, without a copy, and the gradient is a plain sum.
            return of_prompts.expand(len(self._row_group), -1, -1, -1)
        return of_prompts[self._row_group]

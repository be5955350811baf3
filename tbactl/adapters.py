"""Low-rank adapters (LoRA, arXiv 2106.09685): what they add to a weight. Shared by all that merge them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Adapter:
    """What one linear layer's weight W is trained by: its effective value is W + scaling * B A (section 4.1)."""

    a: Float[Tensor, "rank inputs"]
    b: Float[Tensor, "outputs rank"]
    scaling: float
    """lora_alpha / rank."""
    is_transposed: bool
    """W is stored [inputs, outputs], as the layers of GPT-2 do, instead of torch's [outputs, inputs]."""

    def merged_into(self, weight: Tensor) -> Tensor:
        """The effective weight, computed in float32 and rounded once to the weight's own type; a new tensor.

        Raises:
            ValueError: the shapes do not fit.
        """
        change = self.b.float() @ self.a.float()
        if self.is_transposed:
            change = change.T
        if change.shape != weight.shape:
            raise ValueError(f"an adapter of shape {list(change.shape)} does not fit a weight of {list(weight.shape)}")
        return weight.float().add(change, alpha=self.scaling).to(weight.dtype)

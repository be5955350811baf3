"""A policy's weights as one safetensors file under Hugging Face parameter names, tied ones included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tbactl.errors import ChildFailedError

Shapes = Mapping[str, tuple[int, ...]]

_MAX_NAMED = 5


def write_safetensors(path: Path, state: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write parameters, each with storage of its own.

    A tied head shares its storage with the embedding, and safetensors would refuse the pair. It is written out in full:
    an engine that repacks its weights keeps the old head unless it is given the new one.

    Args:
        path: is replaced.
        state: `model.state_dict()`, not `named_parameters()`, which leaves tied parameters out.
        metadata: of the file.
    """
    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in state.items():
        plain = tensor.detach().to("cpu").contiguous()
        storage = plain.untyped_storage()
        is_view = storage.nbytes() != plain.numel() * plain.element_size()
        if is_view or storage.data_ptr() in seen:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        own[name] = plain
    save_file(own, path, metadata=metadata)


@contextmanager
def mapped_weights(path: Path) -> Iterator[tuple[dict[str, tuple[int, ...]], Iterator[tuple[str, Tensor]]]]:
    """Map a weights file read-only: shapes by name, and an iterator over (name, tensor), valid inside the block."""
    with safe_open(path, framework="pt", device="cpu") as file:
        names = list(file.keys())
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        yield shapes, ((name, file.get_tensor(name)) for name in names)


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_shapes(path: Path, *, found: Shapes, expected: Shapes) -> None:
    """Raise unless a file holds exactly the parameters of a model, in their shapes.

    Raises:
        ChildFailedError: one is missing, unknown or of another shape; names the first few.
    """
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is unknown to the model" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if wrong:
        more = f", and {len(wrong) - _MAX_NAMED} more" if len(wrong) > _MAX_NAMED else ""
        raise ChildFailedError(
            f"{path.name} does not fit the engine's model: {'; '.join(wrong[:_MAX_NAMED])}{more}. The trainer must "
            f"publish the whole state dictionary of the same architecture, tied parameters included."
        )


def copy_into(state: Mapping[str, Tensor], weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy each tensor into the one of its name, cast to its type and device."""
    with torch.no_grad():
        for name, tensor in weights:
            state[name].copy_(tensor)

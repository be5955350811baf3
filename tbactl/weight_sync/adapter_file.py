"""Adapters alone as one small safetensors file, and the whole weights that a searcher makes of them.

Engines know nothing of adapters: what they are given is always a complete file. It has lost its name by then, so that
nothing is left over when a searcher is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tbactl.adapters import Adapter
from tbactl.errors import CapacityError, ChildFailedError, is_out_of_space
from tbactl.weight_sync.adapter_description import METADATA_KEY, AdapterDescription
from tbactl.weight_sync.published import held_file
from tbactl.weight_sync.weights_file import write_safetensors

_A, _B = ".lora_A", ".lora_B"

_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


def write_adapters(path: Path, adapters: Mapping[str, Adapter], *, dtype: str, sources: Mapping[str, str]) -> None:
    """Write the adapters of a policy, by the names of the weights that they change.

    Args:
        path: is replaced.
        adapters: at least one.
        dtype: of the whole weights.
        sources: of `AdapterDescription`.
    """
    description = AdapterDescription(
        scaling=next(iter(adapters.values())).scaling,
        transposed=tuple(name for name, adapter in adapters.items() if adapter.is_transposed),
        dtype=dtype,
        sources=dict(sources),
    )
    tensors = {f"{name}{_A}": adapter.a for name, adapter in adapters.items()}
    tensors |= {f"{name}{_B}": adapter.b for name, adapter in adapters.items()}
    write_safetensors(path, tensors, metadata={METADATA_KEY: msgspec.json.encode(description).decode()})


class BaseWeights:
    """The safetensors files of a policy, mapped: what adapters are merged into.

    Args:
        policy: its directory, or a hub name whose files have been fetched before.

    Raises:
        ChildFailedError: there are no such files.
    """

    def __init__(self, policy: Path) -> None:
        self._policy = policy
        try:
            directory = policy if policy.is_dir() else _fetched(policy)
            files = [safe_open(path, framework="pt", device="cpu") for path in _weights_files(directory)]
        except (OSError, ValueError, SafetensorError) as error:
            raise ChildFailedError(
                f"{policy}: its weights cannot be mapped: {error}. Publish whole weights (sync.weights = 'merged')."
            ) from error
        self._owners = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (no mapping)

    @property
    def names(self) -> frozenset[str]:
        """Of the tensors in the files."""
        return frozenset(self._owners)

    def tensor(self, name: str) -> Tensor:
        """A view of one tensor.

        Raises:
            ChildFailedError: there is none of that name.
        """
        if name not in self._owners:
            raise ChildFailedError(f"{self._policy} has no weights {name}; it is not the policy of the adapters.")
        return self._owners[name].get_tensor(name)


def _fetched(hub_name: Path) -> Path:
    return Path(snapshot_download(str(hub_name), local_files_only=True))


def _weights_files(directory: Path) -> list[Path]:
    index = directory / _INDEX_FILE
    if not index.is_file():
        return [directory / _WEIGHTS_FILE]
    return [directory / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]


@contextmanager
def merged_file(path: Path, description: AdapterDescription, *, base: BaseWeights, directory: Path) -> Iterator[Path]:
    """Whole weights out of a file of adapters: yields the path of a complete file, valid inside the block.

    Args:
        path: the adapters.
        description: of that file.
        base: what they are merged into.
        directory: where the complete file is written.

    Raises:
        ChildFailedError: an adapter belongs to no weight, lacks its other half or has the wrong shape, or a weight is
            missing in the base.
        CapacityError: there is no room for it.
    """
    adapters = _read_adapters(path, description)
    with ExitStack() as stack:
        with TemporaryDirectory(prefix="merged-", dir=directory) as scratch:
            file = Path(scratch) / _WEIGHTS_FILE
            _write(file, _merged(adapters, description, base=base))
            held = stack.enter_context(held_file(file))
        yield held


def _write(file: Path, whole: Mapping[str, Tensor]) -> None:
    try:
        write_safetensors(file, whole)
    except (OSError, SafetensorError) as error:
        if is_out_of_space(error):
            raise CapacityError(
                f"no room for whole weights in {file.parent.parent}: {error}. Make /dev/shm larger, or "
                f"searchers.ring_capacity_bytes smaller."
            ) from error
        raise


def _read_adapters(path: Path, description: AdapterDescription) -> dict[str, Adapter]:
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    names = {name.removesuffix(_A).removesuffix(_B) for name in tensors}
    for name in sorted(names):
        if f"{name}{_A}" not in tensors or f"{name}{_B}" not in tensors:
            raise ChildFailedError(f"the published adapter of {name} is incomplete: it takes {_A} and {_B}.")
        if name not in description.sources:
            raise ChildFailedError(f"the published adapter of {name} belongs to no parameter of the policy.")
    return {
        name: Adapter(
            a=tensors[f"{name}{_A}"],
            b=tensors[f"{name}{_B}"],
            scaling=description.scaling,
            is_transposed=name in description.transposed,
        )
        for name in names
    }


def _merged(
    adapters: Mapping[str, Adapter], description: AdapterDescription, *, base: BaseWeights
) -> dict[str, Tensor]:
    dtype = getattr(torch, description.dtype)
    whole: dict[str, Tensor] = {}
    for name, source in description.sources.items():
        weight = base.tensor(source)
        weight = weight.to(dtype) if weight.is_floating_point() else weight
        adapter = adapters.get(name)
        try:
            whole[name] = weight if adapter is None else adapter.merged_into(weight)
        except ValueError as error:
            raise ChildFailedError(f"{name}: {error}") from error
    return whole

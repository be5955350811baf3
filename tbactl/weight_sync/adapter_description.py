"""What a published file says of adapters. Imports no torch: a searcher asks at every sync, whatever its engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from tbactl.errors import ChildFailedError

# One key: safetensors writes several in a random order, and the file's fingerprint would change from run to run.
METADATA_KEY = "tbactl-adapters"


class AdapterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of adapters says besides their tensors."""

    scaling: float
    """The same for all adapters."""
    transposed: tuple[str, ...]
    """Weights that are stored [inputs, outputs]."""
    dtype: str
    """Type of the whole weights: "float32" or "bfloat16"."""
    sources: dict[str, str]
    """Each parameter of the policy -> its name in the base policy's files; tied ones share a source."""


def read_description(path: Path) -> AdapterDescription | None:
    """What a weights file says of adapters; None where it holds whole weights.

    Raises:
        FileNotFoundError: it is not there any more.
        ChildFailedError: it is damaged.
    """
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
        return None if text is None else msgspec.json.decode(text, type=AdapterDescription)
    except (SafetensorError, msgspec.MsgspecError) as error:
        raise ChildFailedError(f"{path.name}: damaged: {error}") from error

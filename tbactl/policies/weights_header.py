"""Names and shapes of the tensors in a safetensors file, read without torch."""

from __future__ import annotations

import json
from pathlib import Path

from tbactl.errors import ConfigError

MAX_HEADER_BYTES = 100 * 2**20


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shape of each tensor by name.

    Raises:
        ConfigError: it is not a safetensors file.
    """
    # It starts with the length of its JSON header: 8 bytes, little-endian.
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ConfigError(f"{file} is not a safetensors file: its header would have {length:,} bytes.")
        data = stream.read(length)
    try:
        return {name: entry["shape"] for name, entry in json.loads(data).items() if name != "__metadata__"}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{file} is not a safetensors file: its header is damaged or cut off.") from None

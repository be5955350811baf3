"""Reads JSON lines while another process appends them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class JsonlTail:
    """Remembers how far a file was read; a line still being written is left for the next call."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0
        self.num_damaged = 0
        """Lines that are not a JSON object: left out."""

    def read_new(self) -> list[dict[str, Any]]:
        """Objects appended since the last call. A missing file has none yet."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # it was replaced by a shorter one
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        objects = []
        for line in complete.splitlines():
            value = _parsed(line)
            if isinstance(value, dict):
                objects.append(value)
            elif line.strip():
                self.num_damaged += 1
        return objects


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None

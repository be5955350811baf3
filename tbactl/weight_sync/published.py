"""What lies in the weights directory: for each policy version a safetensors file and its description.

The description is written after the file and removed before it, each by one rename: who sees a description finds the
whole file, unless it has been superseded twice in the meantime.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

_NAME = re.compile(r"policy-v(\d+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """One policy version as the trainer published it."""

    version: int
    fingerprint: str
    """Of the safetensors file; see `fingerprint.py`."""
    size_bytes: int
    probe: tuple[tuple[tuple[int, ...], int], ...]
    """Sequences whose log-probs both sides compute: (token ids, prompt length) each."""
    probe_logprobs: tuple[tuple[float, ...], ...]
    """The trainer's log-probs of the probe at temperature 1, nats."""


def weights_path(directory: Path, version: int) -> Path:
    """The safetensors file of a version."""
    return directory / f"policy-v{version:08d}.safetensors"


def description_path(directory: Path, version: int) -> Path:
    """The JSON file of a version."""
    return directory / f"policy-v{version:08d}.json"


@contextmanager
def held_file(path: Path) -> Iterator[Path]:
    """Keep a published file for several looks: yields another path to it, which stays when the publisher removes it.

    Raises:
        FileNotFoundError: it is not there any more.
    """
    with path.open("rb") as file:
        yield Path(f"/dev/fd/{file.fileno()}")


def published_versions(directory: Path) -> list[int]:
    """Versions that can be loaded, in rising order."""
    return sorted(int(match[1]) for path in directory.glob("policy-v*.json") if (match := _NAME.fullmatch(path.name)))


def write_description(directory: Path, published: PublishedWeights) -> None:
    """Make a version visible."""
    path = description_path(directory, published.version)
    partial = path.with_suffix(".json-partial")
    partial.write_bytes(msgspec.json.encode(published))
    os.replace(partial, path)


def read_description(directory: Path, version: int) -> PublishedWeights | None:
    """The description of a version; None where it is not, or no longer, published."""
    try:
        data = description_path(directory, version).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=PublishedWeights)

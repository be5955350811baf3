"""A checkpoint's manifest: every file with size and checksum. Written last; without it, it is no checkpoint."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tbactl.config.layout import CheckpointLayout
from tbactl.errors import CheckpointError

LAYOUT_VERSION = 1
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file, by its path relative to the checkpoint."""

    path: str
    size_bytes: int
    blake2b: str
    """BLAKE2b of 32 bytes, hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete checkpoint holds."""

    layout_version: int
    step: int
    """Optimizer steps done, that is, the policy version."""
    files: tuple[FileEntry, ...]


def make_manifest(root: Path, *, step: int) -> Manifest:
    """Describe all files under `root` but the manifest itself."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path != CheckpointLayout(root).manifest)
    files = tuple(
        FileEntry(path=str(path.relative_to(root)), size_bytes=path.stat().st_size, blake2b=checksum(path))
        for path in paths
    )
    return Manifest(layout_version=LAYOUT_VERSION, step=step, files=files)


def checksum(path: Path) -> str:
    """BLAKE2b of a file's bytes, hexadecimal."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(root: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged or of another layout.
    """
    path = CheckpointLayout(root).manifest
    try:
        data = msgspec.json.decode(path.read_bytes())
        if data.get("layout_version") != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path}: checkpoint of layout {data.get('layout_version')}; this tbactl reads {LAYOUT_VERSION}. Use "
                f"the version that wrote it."
            )
        manifest = msgspec.convert(data, Manifest)
    except FileNotFoundError:
        raise CheckpointError(f"{root} is not a complete checkpoint: it has no {path.name}.") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: {error}.") from error
    for entry in manifest.files:
        if Path(entry.path).is_absolute() or ".." in Path(entry.path).parts:
            raise CheckpointError(f"{path}: it lists '{entry.path}', outside of the checkpoint; do not use it.")
    return manifest


def verify(root: Path, *, part: str = "") -> Manifest:
    """Check every file of a checkpoint, or of one of its directories, against the manifest.

    Args:
        root: the checkpoint.
        part: relative directory, e.g. "policy"; empty for all.

    Raises:
        CheckpointError: a file is missing, of another size or content, or outside, by a link; the message names it.
    """
    manifest = read_manifest(root)
    entries = [entry for entry in manifest.files if not part or Path(entry.path).is_relative_to(part)]
    if not entries:
        listed = f"no file of {part}/" if part else "no file"
        raise CheckpointError(f"{CheckpointLayout(root).manifest}: it lists {listed}; the checkpoint is incomplete.")
    for entry in entries:
        path = root / entry.path
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise CheckpointError(f"{path}: a link leads out of the checkpoint; put what it points to in its place.")
        _verify_file(path, entry)
    return manifest


def _verify_file(path: Path, entry: FileEntry) -> None:
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: missing; the checkpoint is incomplete.")
        if path.stat().st_size != entry.size_bytes:
            raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes instead of {entry.size_bytes:,}; damaged.")
        if checksum(path) != entry.blake2b:
            raise CheckpointError(f"{path}: its content does not fit its checksum; damaged.")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error

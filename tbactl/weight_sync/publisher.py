"""The trainer's side: write a version under a temporary name, rename it, describe it; once for all searchers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError

from tbactl.errors import CapacityError, is_out_of_space
from tbactl.protocols import ProbeBatch
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import (
    PublishedWeights,
    description_path,
    published_versions,
    weights_path,
    write_description,
)


def publish(
    weights_directory: Path,
    *,
    version: int,
    write: Callable[[Path], None],
    probe: ProbeBatch,
    probe_logprobs: Sequence[Sequence[float]],
) -> PublishedWeights:
    """Publish one policy version; the version before it stays, older ones are removed.

    A searcher that has mapped a removed file keeps what it mapped; one that comes too late finds the newer version.
    The old versions go first, so that there are never more than two complete ones and the one being written.

    Args:
        weights_directory: is created, mode 0700.
        version: larger than all published before, or one of them again (after a resume).
        write: writes the safetensors file, tied parameters included (`weights_file.write_safetensors`).
        probe: sequences for the searchers' check.
        probe_logprobs: the trainer's log-probs of them at temperature 1, nats.

    Returns:
        The description that searchers will read.

    Raises:
        CapacityError: it does not fit.
    """

    def describe(file: Path) -> PublishedWeights:
        return PublishedWeights(
            version=version,
            fingerprint=fingerprint(file),
            size_bytes=file.stat().st_size,
            probe=probe.sequences,
            probe_logprobs=tuple(tuple(logprobs) for logprobs in probe_logprobs),
        )

    return _publish(weights_directory, version=version, write=write, describe=describe)


def publish_copy(weights_directory: Path, published: PublishedWeights, *, write: Callable[[Path], None]) -> None:
    """Publish on this machine what a trainer has published on another one, with its description as it is.

    So a searcher that loads the copy compares with what the trainer wrote.

    Args:
        weights_directory: of this machine.
        published: the trainer's description.
        write: writes the safetensors file.

    Raises:
        CapacityError: it does not fit.
    """
    _publish(weights_directory, version=published.version, write=write, describe=lambda _: published)


def _publish(
    weights_directory: Path,
    *,
    version: int,
    write: Callable[[Path], None],
    describe: Callable[[Path], PublishedWeights],
) -> PublishedWeights:
    weights_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in published_versions(weights_directory)[:-1]:
        _remove(weights_directory, old)
    path = weights_path(weights_directory, version)
    partial = path.with_suffix(".partial")
    try:
        write(partial)
        partial.chmod(0o400)
        published = describe(partial)
        os.replace(partial, path)
        write_description(weights_directory, published)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        if is_out_of_space(error):
            raise CapacityError(
                f"no room for policy version {version} in {weights_directory}: {error}. Make /dev/shm larger, or "
                f"searchers.ring_capacity_bytes smaller."
            ) from error
        raise
    return published


def _remove(weights_directory: Path, version: int) -> None:
    description_path(weights_directory, version).unlink(missing_ok=True)
    weights_path(weights_directory, version).unlink(missing_ok=True)

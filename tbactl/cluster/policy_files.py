"""The initial policy on a node: where a shared file system shows the same files they are used, else they are sent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import xxhash

from tbactl.errors import ChildFailedError
from tbactl.policies.cache import cache_root
from tbactl.weight_sync.fingerprint import fingerprint


def policy_listing(directory: Path) -> dict[str, str]:
    """The files directly in a policy's directory and their fingerprints; empty where it is none (a hub name)."""
    if not directory.is_dir():
        return {}
    files = sorted(path for path in directory.iterdir() if path.is_file())
    # An empty file cannot be mapped, and needs no fingerprint.
    return {path.name: fingerprint(path) if path.stat().st_size else "" for path in files}


class PolicyFiles:
    """The policy as one node finds or receives it. What was received is kept in the user's cache for the next time.

    Args:
        directory: where the policy lies on the trainer's machine, or a hub name.
        listing: of that directory.
        cache: below it received policies are kept; None: the user's cache.
    """

    def __init__(self, directory: Path, *, listing: Mapping[str, str], cache: Path | None = None) -> None:
        self._listing = dict(listing)
        name = xxhash.xxh3_128_hexdigest(repr(sorted(self._listing.items())).encode())
        self._kept = (cache or cache_root() / "policies") / name
        self._partial: Path | None = None
        self.directory: Path | None = None
        """Where it lies on this node; None: it must be sent."""
        for candidate in (directory, self._kept):
            if not listing or policy_listing(candidate) == self._listing:
                self.directory = candidate
                break

    def take(self, name: str, data: memoryview) -> None:
        """Write one file that was sent; the last one completes the policy.

        Raises:
            ChildFailedError: it is not one of the policy's, or not what it was.
        """
        if name not in self._listing:
            raise ChildFailedError(f"{name!r} is no file of the policy.")
        if self._partial is None:
            self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._partial = Path(tempfile.mkdtemp(prefix=f".{self._kept.name}.", dir=self._kept.parent))
        path = self._partial / name
        path.write_bytes(data)
        if len(data) and fingerprint(path) != self._listing[name]:
            raise ChildFailedError(f"{name} of the policy has changed while it was sent.")
        if {entry.name for entry in self._partial.iterdir()} == set(self._listing):
            self._keep(self._partial)

    def discard(self) -> None:
        """Remove what has arrived of a policy that is not complete."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = None

    def _keep(self, received: Path) -> None:
        try:
            received.rename(self._kept)
        except OSError:  # another searcher of this node was faster, or an older copy is damaged
            if policy_listing(self._kept) != self._listing:
                shutil.rmtree(self._kept, ignore_errors=True)
                received.rename(self._kept)
        self.discard()
        self.directory = self._kept

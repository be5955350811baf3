"""The searcher's side: find the newest version, load it, and check that both sides now mean the same policy."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tbactl.clock import Clock
from tbactl.protocols import Engine
from tbactl.weight_sync.adapter_description import read_description as read_adapter_description
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import (
    PublishedWeights,
    held_file,
    published_versions,
    read_description,
    weights_path,
)

if TYPE_CHECKING:
    from tbactl.weight_sync.adapter_file import BaseWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What one load did."""

    version: int
    fingerprint: str
    seconds: float
    """For loading and checking."""
    max_logprob_difference: float
    """Largest |searcher - trainer| over all probe tokens, nats; infinite where one is not a number; 0 without probe."""
    alarms: tuple[str, ...]
    """What looks wrong, one sentence each; also logged."""


class Subscriber:
    """Loads published weights into one engine, and remembers the last, to notice weights that never change.

    Args:
        weights_directory: where the trainer publishes.
        policy_directory: of the initial policy; published adapters are merged into its weights.
        max_logprob_difference: alarm level of the probe, nats.
        clock: for durations.

    Example:
        published = subscriber.newest()
        if published is not None and published.version > engine.policy_version:
            report = subscriber.load(published, engine=engine)
    """

    def __init__(
        self, weights_directory: Path, *, policy_directory: Path, max_logprob_difference: float, clock: Clock
    ) -> None:
        self._directory = weights_directory
        self._policy_directory = policy_directory
        self._base: BaseWeights | None = None
        self._max_difference = max_logprob_difference
        self._clock = clock
        self._last: PublishedWeights | None = None

    def newest(self) -> PublishedWeights | None:
        """The newest published version, or None."""
        for version in reversed(published_versions(self._directory)):
            published = self.find(version)
            if published is not None:  # else removed since it was listed
                return published
        return None

    def find(self, version: int) -> PublishedWeights | None:
        """One version, where it is still published."""
        return read_description(self._directory, version)

    def load(self, published: PublishedWeights, *, engine: Engine) -> SyncReport | None:
        """Load a version into the engine, between two of its steps, and compare.

        Returns:
            The report; None when the version was superseded and removed before it could be read.

        Raises:
            ChildFailedError: the file does not fit the engine's model.
        """
        start_s = self._clock.monotonic_s()
        path = weights_path(self._directory, published.version)
        try:
            with held_file(path) as held:
                loaded = self._load(held, published=published, engine=engine)
        except FileNotFoundError:
            return None
        scores = engine.sequence_logprobs(published.probe) if published.probe else []
        difference = max_difference(scores, published.probe_logprobs)
        report = SyncReport(
            version=published.version,
            fingerprint=loaded,
            seconds=self._clock.monotonic_s() - start_s,
            max_logprob_difference=difference,
            alarms=tuple(self._alarms(published, loaded=loaded, difference=difference)),
        )
        self._last = published
        logger.info(
            "sync version=%d fingerprint=%s seconds=%.3f max_logprob_difference=%.2e",
            report.version,
            report.fingerprint[:16],
            report.seconds,
            difference,
        )
        for alarm in report.alarms:
            logger.error("alarm version=%d %s", report.version, alarm)
        return report

    def _load(self, held: Path, *, published: PublishedWeights, engine: Engine) -> str:
        """Give the engine whole weights; returns the fingerprint of the published file that they come from."""
        path = weights_path(self._directory, published.version)
        description = read_adapter_description(held)
        if description is None:
            return engine.load_policy(path, version=published.version)
        # Imports torch, which an engine may well do without.
        from tbactl.weight_sync.adapter_file import BaseWeights, merged_file

        if self._base is None:
            self._base = BaseWeights(self._policy_directory)
        with merged_file(held, description, base=self._base, directory=self._directory) as whole:
            merged = fingerprint(whole)
            loaded = engine.load_policy(whole, version=published.version)
        # What an engine loads it made of what was published; else it says itself what it holds.
        return fingerprint(held) if loaded == merged else loaded

    def _alarms(self, published: PublishedWeights, *, loaded: str, difference: float) -> list[str]:
        alarms = []
        if loaded != published.fingerprint:
            alarms.append(
                f"the loaded weights have fingerprint {loaded}, the published ones {published.fingerprint}: "
                f"the file was damaged or exchanged."
            )
        last = self._last
        if last is not None and last.version != published.version and last.fingerprint == published.fingerprint:
            alarms.append(
                f"the weights are identical to those of version {last.version}: the trainer does not learn, or "
                f"publishes something it does not train."
            )
        if not difference <= self._max_difference:
            alarms.append(
                f"log-probs differ from the trainer's by up to {difference:.3g} nats "
                f"(sync.max_logprob_difference = {self._max_difference:g}): the engine does not hold the trainer's "
                f"policy."
            )
        return alarms


def max_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Largest absolute difference; infinite where lengths differ or a number is not finite."""
    if [len(a) for a in ours] != [len(b) for b in theirs]:
        return math.inf
    differences = [abs(x - y) for a, b in zip(ours, theirs, strict=True) for x, y in zip(a, b, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)

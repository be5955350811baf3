"""Weights out to the searchers, and an eye on whether they take them and mean the same by them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.clock import Clock
from tbactl.config.sections import SyncSection
from tbactl.errors import ChildFailedError
from tbactl.ipc.control_page import NUM_REWARD_METRICS, SYNC_EDITS, SYNCED, ControlPage, ProcessState
from tbactl.protocols import Learner, ProbeBatch
from tbactl.replay.buffer import ReplayBuffer
from tbactl.weight_sync.publisher import publish

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Lag:
    """How long a searcher has held one version although there is a newer one."""

    since_s: float
    loaded_version: int = 0
    is_reported: bool = False


class Syncing:
    """Publishes policy versions; never waits for anybody.

    A searcher that does not take new weights in time is the supervisor's to restart; here it is an alarm. So is one
    whose log-probs of the probe differ too much from the trainer's, or whose weights are not the published ones. Where
    they differ by far, version after version, the run ends: what such a searcher generates is another policy's.
    """

    def __init__(
        self,
        section: SyncSection,
        *,
        acknowledge_timeout_s: float,
        page: ControlPage,
        weights_directory: Path,
        learner: Learner,
        buffer: ReplayBuffer,
        state: TrainerState,
        clock: Clock,
        reward_metrics: Sequence[str] = (),
    ) -> None:
        self._reward_metrics = reward_metrics[:NUM_REWARD_METRICS]
        self._section = section
        self._acknowledge_timeout_s = acknowledge_timeout_s
        self._slot = page.trainer()
        self._searchers = [page.searcher(index) for index in range(page.num_searchers)]
        self._weights_directory = weights_directory
        self._learner = learner
        self._buffer = buffer
        self._state = state
        self._clock = clock
        self._published_version = 0
        # Of the versions that can be loaded, as searchers show it: the first 8 bytes.
        self._fingerprints: dict[int, int] = {}
        self._lags = [_Lag(since_s=clock.monotonic_s()) for _ in self._searchers]
        self._checked = [0] * len(self._searchers)
        # Versions in a row that each searcher held with log-probs beyond the level that ends the run.
        self._off: list[set[int]] = [set() for _ in self._searchers]

    def publish(self) -> None:
        """Publish the learner's weights as the state's policy version."""
        version = self._state.policy_version
        probe = self._probe()
        published = publish(
            self._weights_directory,
            version=version,
            write=self._learner.write_weights,
            probe=probe,
            probe_logprobs=self._learner.probe_logprobs(probe) if probe.sequences else [],
        )
        # Those that were up to date have from now on.
        self._check_acknowledgements()
        self._published_version = version
        self._fingerprints[version] = int(published.fingerprint[:16], 16)
        for superseded in list(self._fingerprints)[:-2]:
            del self._fingerprints[superseded]
        self._slot.set(published_version=version)

    def _probe(self) -> ProbeBatch:
        """The newest trajectories of some prompts: what both sides really see. The same for the same buffer."""
        if not self._section.probe_sequences:
            return ProbeBatch(sequences=())
        sequences = []
        for prompt in list(self._buffer.prompts.values())[-self._section.probe_sequences :]:
            prompt_ids = prompt.prompt_token_ids
            newest = prompt.newest.to_trajectory()
            sequences.append(((*prompt_ids, *newest.completion.token_ids), len(prompt_ids)))
        return ProbeBatch(sequences=tuple(sequences))

    def observe(self) -> dict[str, float]:
        """Look at the searchers once; metrics, with alarms counted and logged.

        Raises:
            ChildFailedError: a searcher's log-probs have been far off for too many versions.
        """
        self._check_acknowledgements()
        self._check_loaded()
        searchers = [slot.snapshot() for slot in self._searchers]
        versions = [int(searcher["loaded_version"]) for searcher in searchers]
        return {
            "sync/published_version/value": float(self._published_version),
            "sync/version_lag/max": float(max(self._published_version - version for version in versions)),
            "sync/alarms/total": float(self._state.total("alarms")),
            "sync/fingerprint_mismatches/total": float(self._state.total("fingerprint_mismatches")),
            "searcher/logprob_difference/max": max(searcher["f_logprob_difference"] for searcher in searchers),
            "searcher/sync_s/max": max(searcher["f_sync_seconds"] for searcher in searchers),
            "searcher/tokens_per_s/sum": sum(searcher["f_tokens_per_s"] for searcher in searchers),
            "searcher/ring_fill/max": max(searcher["f_ring_fill"] for searcher in searchers),
            "searcher/turn_s/max": max(searcher["f_longest_turn_s"] for searcher in searchers),
            "searcher/idle/mean": sum(searcher["f_idle_fraction"] for searcher in searchers) / len(searchers),
            "searcher/completions/total": float(sum(searcher["num_completions"] for searcher in searchers)),
            **self._reward_means(searchers),
        }

    def _reward_means(self, searchers: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Of what rewards say besides their value: over the searchers that have heard it said."""
        means: dict[str, float] = {}
        for i, name in enumerate(self._reward_metrics):
            known = [s[f"f_reward_metric_{i}"] for s in searchers if int(s["reward_metrics_known"]) >> i & 1]
            if known:
                means[f"searcher/reward_{name}/mean"] = sum(known) / len(known)
        return means

    def _check_acknowledgements(self) -> None:
        now_s = self._clock.monotonic_s()
        for index, (slot, lag) in enumerate(zip(self._searchers, self._lags, strict=True)):
            loaded = slot.get("loaded_version")
            # An evaluation may take evaluation_timeout_s, and holds new weights off until its end.
            may_load = slot.get("state") == ProcessState.RUNNING and not slot.get("evaluating")
            is_behind = may_load and loaded < self._published_version
            if not is_behind or loaded != lag.loaded_version:
                # It holds the newest version, or has taken another one since: its time begins anew.
                lag.loaded_version, lag.since_s, lag.is_reported = loaded, now_s, False
            elif now_s - lag.since_s > self._acknowledge_timeout_s and not lag.is_reported:
                lag.is_reported = True
                self._alarm(
                    f"searcher {index} has not loaded policy version {self._published_version} for "
                    f"{now_s - lag.since_s:.0f} s (supervision.acknowledge_timeout_s); it holds {loaded}"
                )

    def _check_loaded(self) -> None:
        """Each searcher's newest weights, once."""
        limit = self._section.max_logprob_difference
        for index, slot in enumerate(self._searchers):
            words = slot.get_together(SYNC_EDITS, *SYNCED)
            if words is None or words["loaded_version"] == self._checked[index]:
                continue
            version, loaded = int(words["loaded_version"]), int(words["fingerprint"])
            self._checked[index] = version
            if version == 0:  # It was started again: nothing is loaded yet, and nothing has become right.
                continue
            difference = words["f_logprob_difference"]
            if not difference <= limit:
                self._alarm(
                    f"searcher {index}, policy version {version}: its log-probs of the probe differ from the trainer's "
                    f"by up to {difference:.3g} nats (sync.max_logprob_difference = {limit:g})"
                )
            self._end_if_off(index, version=version, difference=difference)
            published = self._fingerprints.get(version)
            if published is not None and loaded != published:
                self._state.count(fingerprint_mismatches=1)
                self._alarm(
                    f"searcher {index}, policy version {version}: its weights have the fingerprint {loaded:016x}..., "
                    f"the published ones {published:016x}...: the file was damaged or exchanged"
                )

    def _end_if_off(self, index: int, *, version: int, difference: float) -> None:
        """A look at a version that a searcher has just loaded: the gate behind the alarm."""
        limit, patience = self._section.stop_logprob_difference, self._section.stop_patience
        off = self._off[index]
        if difference <= limit:
            off.clear()
        else:
            off.add(version)
        if limit and len(off) >= patience:
            raise ChildFailedError(
                f"searcher {index}: its log-probs of the probe differ from the trainer's by up to {difference:.3g} "
                f"nats, for {len(off)} policy versions in a row by more than {limit:g} "
                f"(sync.stop_logprob_difference, sync.stop_patience = {patience}): it does not hold the policy that "
                f"is trained. Look for engine settings that change the model (quantization, dtype, adapters); 0 lets "
                f"such a run go on."
            )

    def _alarm(self, text: str) -> None:
        logger.error("alarm: %s", text)
        self._state.count(alarms=1)
        self._slot.add(num_alarms=1)

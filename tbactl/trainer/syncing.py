"""Weights out to the searchers, and an eye on whether they take them and mean the same by them."""

from __future__ import annotations

import logging
from pathlib import Path

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.clock import Clock
from tbactl.config.sections import SyncSection
from tbactl.ipc.control_page import ControlPage, ProcessState
from tbactl.protocols import Learner, ProbeBatch
from tbactl.replay.buffer import ReplayBuffer
from tbactl.weight_sync.publisher import publish

logger = logging.getLogger(__name__)


class Syncing:
    """Publishes policy versions; never waits for anybody.

    A searcher that does not take new weights in time is the supervisor's to restart; here it is an alarm. So is one
    whose log-probs of the probe differ too much from the trainer's.
    """

    def __init__(
        self,
        section: SyncSection,
        *,
        page: ControlPage,
        weights_directory: Path,
        learner: Learner,
        buffer: ReplayBuffer,
        state: TrainerState,
        clock: Clock,
    ) -> None:
        self._section = section
        self._slot = page.trainer()
        self._searchers = [page.searcher(index) for index in range(page.num_searchers)]
        self._weights_directory = weights_directory
        self._learner = learner
        self._buffer = buffer
        self._state = state
        self._clock = clock
        self._published_version = 0
        self._published_s = clock.monotonic_s()
        self._late: set[int] = set()
        self._checked = [0] * len(self._searchers)

    def publish(self) -> None:
        """Publish the learner's weights as the state's policy version."""
        version = self._state.policy_version
        probe = self._probe()
        publish(
            self._weights_directory,
            version=version,
            write=self._learner.write_weights,
            probe=probe,
            probe_logprobs=self._learner.probe_logprobs(probe) if probe.sequences else [],
        )
        self._published_version, self._published_s = version, self._clock.monotonic_s()
        self._late.clear()
        self._slot.set(published_version=version)

    def _probe(self) -> ProbeBatch:
        """The newest trajectories of some prompts: what both sides really see. The same for the same buffer."""
        sequences = []
        for prompt in list(self._buffer.prompts.values())[-self._section.probe_sequences :]:
            prompt_ids = prompt.header.prompt_token_ids
            newest = prompt.trajectories[-1].to_trajectory()
            sequences.append(((*prompt_ids, *newest.completion.token_ids), len(prompt_ids)))
        return ProbeBatch(sequences=tuple(sequences) if self._section.probe_sequences else ())

    def observe(self) -> dict[str, float]:
        """Look at the searchers once; metrics, with alarms counted and logged."""
        self._check_acknowledgements()
        self._check_differences()
        searchers = [slot.snapshot() for slot in self._searchers]
        versions = [int(searcher["loaded_version"]) for searcher in searchers]
        return {
            "sync/published_version/value": float(self._published_version),
            "sync/version_lag/max": float(max(self._published_version - version for version in versions)),
            "sync/alarms/total": float(self._state.total("alarms")),
            "searcher/logprob_difference/max": max(searcher["f_logprob_difference"] for searcher in searchers),
            "searcher/sync_s/max": max(searcher["f_sync_seconds"] for searcher in searchers),
            "searcher/tokens_per_s/sum": sum(searcher["f_tokens_per_s"] for searcher in searchers),
            "searcher/ring_fill/max": max(searcher["f_ring_fill"] for searcher in searchers),
            "searcher/idle/mean": sum(searcher["f_idle_fraction"] for searcher in searchers) / len(searchers),
            "searcher/completions/total": float(sum(searcher["num_completions"] for searcher in searchers)),
        }

    def _check_acknowledgements(self) -> None:
        age_s = self._clock.monotonic_s() - self._published_s
        for index, slot in enumerate(self._searchers):
            is_late = slot.get("state") == ProcessState.RUNNING and slot.get("loaded_version") < self._published_version
            if is_late and age_s > self._section.acknowledge_timeout_s and index not in self._late:
                self._late.add(index)
                self._alarm(
                    f"searcher {index} has not loaded policy version {self._published_version} for {age_s:.0f} s "
                    f"(sync.acknowledge_timeout_s); it holds {slot.get('loaded_version')}"
                )

    def _check_differences(self) -> None:
        limit = self._section.max_logprob_difference
        for index, slot in enumerate(self._searchers):
            version = slot.get("loaded_version")
            difference = slot.get_float("f_logprob_difference")
            if version != self._checked[index] and not difference <= limit:
                self._alarm(
                    f"searcher {index}, policy version {version}: its log-probs of the probe differ from the trainer's "
                    f"by up to {difference:.3g} nats (sync.max_logprob_difference = {limit:g})"
                )
            self._checked[index] = version

    def _alarm(self, text: str) -> None:
        logger.error("alarm: %s", text)
        self._state.count(alarms=1)
        self._slot.add(num_alarms=1)

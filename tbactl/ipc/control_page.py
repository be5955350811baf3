"""The control page: one small memory-mapped file through which the processes of a run see one another.

It is a table of slots (supervisor, trainer ranks, searchers) of 8-byte words. Each slot has ONE writer, its own
process; everybody may read. A word is stored with a single aligned 8-byte store, so a reader sees the old or the new
value, never a mixture. Two words are not updated together, so none depends on another being newer; those few that
belong together are written with `set_together` and read with `get_together`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from tbactl.errors import CapacityError, CheckpointError

MAGIC = 0x7462616374_6C6370  # "tbactl" "cp"
LAYOUT_VERSION = 3
HEADER_WORDS = 8
SLOT_WORDS = 96

NUM_STALENESS_BINS = 16
NUM_REWARD_BINS = 10
NUM_REWARD_METRICS = 8


class ProcessState(IntEnum):
    """Life of a child, as it reports itself."""

    SPAWNED = 0
    LOADING = 1
    READY = 2
    RUNNING = 3
    DRAINING = 4
    STOPPED = 5
    FAILED = 6


class RunState(IntEnum):
    """What the supervisor asks of the children."""

    STARTING = 0
    RUNNING = 1
    DRAINING = 2  # searchers: no new prompt; trainer: final checkpoint, then leave
    STOPPING = 3  # everybody leaves now


class TrainerPhase(IntEnum):
    """What the trainer is doing, for the dashboard."""

    LOADING = 0
    FILLING = 1
    WAITING = 2
    TRAINING = 3
    SYNCING = 4
    CHECKPOINTING = 5
    DONE = 6


class AlarmKind(IntEnum):
    """What a process's last alarm was about; its log says the rest."""

    NONE = 0
    WEIGHTS = 1  # other weights than those published, or other log-probs
    EVALUATION = 2
    DELIVERY = 3  # a group that could not be written to the ring


def _words(*names: str) -> tuple[str, ...]:
    """Check that a table fits a slot and names nothing twice."""
    assert len(names) <= SLOT_WORDS and len(set(names)) == len(names)
    return names


# Times are nanoseconds of CLOCK_MONOTONIC. Names that start with "f_" hold a float64, all others an unsigned integer.
COMMON = ("state", "pid", "heartbeat_ns", "progress_ns", "progress_count")

SUPERVISOR_WORDS = _words(*COMMON, "run_state", "num_restarts", "started_ns")
TRAINER_WORDS = _words(
    *COMMON,
    "phase",
    "policy_version",  # optimizer steps done
    "published_version",  # newest weights the searchers may load
    "granted_groups",  # mode = "sync": groups all searchers together may have started so far
    "evaluate_version",  # searcher 0 evaluates when it has loaded this version; 0 means the initial policy
    "finished",  # 1: the last step is done and its weights are published
    "num_groups_received",
    "num_trajectories_received",
    "num_trajectories_trained",
    "tokens_trained",
    "buffer_trajectories",
    "buffer_prompts",
    "buffer_capacity",
    "checkpoint_step",
    "num_alarms",
    "f_step_seconds",
    "f_steps_per_second",
    "f_idle_fraction",
    "f_reward_mean",
    "f_loss",
    "f_residual",
    "f_log_z",
    "f_kl",
    "f_grad_norm",
    "f_learning_rate",
    "f_beta",
    "f_completion_tokens",
    "f_staleness_p50",
    "f_staleness_p95",
    "f_samples_per_insert",
    "f_reward_low",  # range of the reward histogram
    "f_reward_high",
    *(
        f"staleness_bin_{i}" for i in range(NUM_STALENESS_BINS)
    ),  # trajectories in the buffer i versions old; last: older
    *(f"reward_bin_{i}" for i in range(NUM_REWARD_BINS)),
)
# Of the weights that a searcher has loaded last: stored together, read together (`Slot.set_together`).
SYNC_EDITS = "sync_edits"
SYNCED = ("loaded_version", "fingerprint", "f_sync_seconds", "f_logprob_difference")
SEARCHER_WORDS = _words(
    *COMMON,
    "attempt",
    SYNC_EDITS,  # odd while the words of a sync are being written
    "loaded_version",
    "fingerprint",  # first 8 bytes of the fingerprint of the loaded weights
    "evaluated_version_plus_1",  # 0: none yet
    "evaluating",
    "num_prompts_started",
    "num_groups_written",
    "num_completions",
    "num_failed",  # completions dropped: engine or reward failure
    "num_skipped_prompts",
    "tokens_generated",
    "num_active_requests",
    "stream_position",
    "num_syncs",
    "num_alarms",
    "alarm_kind",
    "f_tokens_per_s",
    "f_ring_fill",
    "f_sync_seconds",
    "f_logprob_difference",  # max over the probe batch after the last sync, nats
    "f_reward_mean",  # moving mean of its own completions
    "f_completion_tokens",
    "f_idle_fraction",
    "f_longest_turn_s",  # of its loop, over the last 10 s
    "reward_metrics_known",  # bit i: the i-th of the task's `reward_metrics` has a mean
    *(f"f_reward_metric_{i}" for i in range(NUM_REWARD_METRICS)),  # their moving means
)


class Slot:
    """One process's row of the page."""

    def __init__(self, words: memoryview, floats: memoryview[float], names: tuple[str, ...]) -> None:
        self._words = words
        self._floats = floats
        self._index: Mapping[str, int] = {name: i for i, name in enumerate(names)}

    def get(self, name: str) -> int:
        """The integer word `name`."""
        assert not name.startswith("f_"), name
        return self._words[self._index[name]]

    def get_float(self, name: str) -> float:
        """The float word `name`."""
        assert name.startswith("f_"), name
        return self._floats[self._index[name]]

    def set(self, **values: int | float) -> None:
        """Store words. Only the slot's own process does; the supervisor resets a slot before it starts a child."""
        for name, value in values.items():
            if name.startswith("f_"):
                self._floats[self._index[name]] = float(value)
            else:
                self._words[self._index[name]] = int(value)

    def add(self, **amounts: int) -> None:
        """Increase counters of one's own slot."""
        for name, amount in amounts.items():
            self._words[self._index[name]] += amount

    def set_together(self, edits: str, **values: int | float) -> None:
        """Store words that `get_together` then shows all or none of; `edits` names the word that counts for them."""
        self.add(**{edits: 1})
        self.set(**values)
        self.add(**{edits: 1})

    def get_together(self, edits: str, *names: str) -> dict[str, float] | None:
        """Words that `set_together` stored, of one call; None while it is storing: look again later."""
        before = self.get(edits)
        values = {name: self.get_float(name) if name.startswith("f_") else self.get(name) for name in names}
        return values if before % 2 == 0 and self.get(edits) == before else None

    def snapshot(self) -> dict[str, float]:
        """All words by name (each read once)."""
        return {n: self._floats[i] if n.startswith("f_") else self._words[i] for n, i in self._index.items()}

    def reset(self) -> None:
        """Set every word to zero."""
        for i in range(SLOT_WORDS):
            self._words[i] = 0


class ControlPage:
    """The open page. The supervisor creates it and removes it with the shared-memory directory; children open it."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        view = memoryview(mapping)
        self._words, self._floats = view.cast("Q"), view.cast("d")
        if self._words[0] != MAGIC or self._words[1] != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path} is not a control page of layout {LAYOUT_VERSION} (magic {self._words[0]:#x}, layout "
                f"{self._words[1]}): it belongs to another version of tbactl; end that run first."
            )
        self.num_trainer_ranks, self.num_searchers = self._words[2], self._words[3]

    @classmethod
    def create(cls, path: Path, *, num_trainer_ranks: int, num_searchers: int) -> ControlPage:
        """Make a zeroed page, mode 0600.

        Raises:
            CapacityError: the file system has no room for it.
        """
        size = 8 * (HEADER_WORDS + SLOT_WORDS * (1 + num_trainer_ranks + num_searchers))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Allocate now: a full tmpfs must be an error here, not SIGBUS at the first store.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, struct.pack("<4Q", MAGIC, LAYOUT_VERSION, num_trainer_ranks, num_searchers), 0)
        except OSError as error:
            path.unlink()
            raise CapacityError(
                f"cannot allocate {size} bytes for the control page {path}: {error.strerror}."
            ) from error
        finally:
            os.close(descriptor)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> ControlPage:
        """Map an existing page; `read_only` for those who only look, so that no mistake of theirs can reach the run.

        Raises:
            CheckpointError: the file is not a control page of this layout.
            FileNotFoundError: there is none: the run has ended.
        """
        descriptor = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < 8 * HEADER_WORDS:
                raise CheckpointError(f"{path} is too short for a control page.")
            return cls(path, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE))
        finally:
            os.close(descriptor)

    def _slot(self, number: int, names: tuple[str, ...]) -> Slot:
        start = HEADER_WORDS + number * SLOT_WORDS
        return Slot(self._words[start : start + SLOT_WORDS], self._floats[start : start + SLOT_WORDS], names)

    @property
    def supervisor(self) -> Slot:
        """Written by the supervisor."""
        return self._slot(0, SUPERVISOR_WORDS)

    def trainer(self, rank: int = 0) -> Slot:
        """Written by that trainer rank; only rank 0 fills in more than the common words."""
        assert 0 <= rank < self.num_trainer_ranks, rank
        return self._slot(1 + rank, TRAINER_WORDS)

    def searcher(self, index: int) -> Slot:
        """Written by that searcher."""
        assert 0 <= index < self.num_searchers, index
        return self._slot(1 + self.num_trainer_ranks + index, SEARCHER_WORDS)

"""What a checkpoint of the trainer holds, how it is written beside the training, and how a run goes on from it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbactl.checkpoints.manifest import verify
from tbactl.checkpoints.store import CheckpointStore
from tbactl.checkpoints.trainer_state import TrainerState, read_trainer_state, write_trainer_state
from tbactl.config.layout import CheckpointLayout, ProcessConfig
from tbactl.config.resume import fixed_differences
from tbactl.config.sections import RunConfig
from tbactl.config.settings import dotted
from tbactl.config.toml_lines import KeyPath
from tbactl.errors import CheckpointError, TbactlError
from tbactl.protocols import Learner
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.snapshot import save_buffer
from tbactl.trainer.batches import first_rng_state
from tbactl.trainer.buffers import saved_buffer

logger = logging.getLogger(__name__)


# How often a wait for the disk is reported as progress.
_REPORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A checkpoint that is on the disk."""

    step: int
    seconds: float
    """That completing it has taken, beside the training or not."""


class Checkpointing:
    """Writes learner, exported policy, replay buffer and state as one transaction.

    All files are written at the step itself, so that they are of one moment. Then a thread completes the checkpoint:
    flushes them to the disk, computes checksums, gives names. One checkpoint at a time: the next waits for it.

    Args:
        store: the run's checkpoints.
        state, buffer, learner: what is saved.
        asynchronous: go on training while a checkpoint is completed.
        timeout_s: longest wait for the disk.
        note_progress: called now and then in such a wait.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        state: TrainerState,
        buffer: ReplayBuffer,
        learner: Learner,
        asynchronous: bool,
        timeout_s: float,
        note_progress: Callable[[], object],
    ) -> None:
        self._store = store
        self._state = state
        self._buffer = buffer
        self._learner = learner
        self._asynchronous = asynchronous
        self._timeout_s = timeout_s
        self._note_progress = note_progress
        self._written: int | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[CompletedCheckpoint] | None = None
        self._completed: CompletedCheckpoint | None = None

    def has(self, step: int) -> bool:
        """Whether this process has written (or resumed from) the checkpoint of a step, and nothing happened since."""
        return self._written == step

    def note_resumed(self) -> None:
        """The state is that of a checkpoint on disk."""
        self._written = self._state.policy_version

    def write(self) -> None:
        """Write a checkpoint of the state as it is; the one before is completed first.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: the exported policy does not load as it was written, or the disk takes too long.
        """
        self.finish()
        step = self._state.policy_version
        with self._store.staging(step=step) as checkpoint:
            self._learner.export_policy(checkpoint.policy)
            self._learner.save(checkpoint.learner)
            save_buffer(self._buffer, checkpoint.replay)
            write_trainer_state(checkpoint, self._state)
        self._written = step
        self._pending = self._executor.submit(self._complete, step)
        if not self._asynchronous:
            self.finish()

    def _complete(self, step: int) -> CompletedCheckpoint:
        start_s = time.perf_counter()
        self._store.complete(step=step)
        return CompletedCheckpoint(step=step, seconds=time.perf_counter() - start_s)

    def take_completed(self) -> CompletedCheckpoint | None:
        """The newest checkpoint that is known to be complete since the last call, if any. Never waits.

        One that is known already comes first, and the next at the next call: should that one have failed, nobody would
        hear of the first.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: it could not be completed for another reason.
        """
        if self._completed is None and self._pending is not None and self._pending.done():
            self.finish()
        completed, self._completed = self._completed, None
        return completed

    def finish(self) -> None:
        """Wait until the checkpoint that is being completed, if any, is on the disk.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: it could not be completed for another reason, or not in time.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        until_s = time.monotonic() + self._timeout_s
        while wait([pending], timeout=min(_REPORT_S, self._timeout_s)).not_done:
            if time.monotonic() >= until_s:
                raise CheckpointError(
                    f"checkpoint {self._written} is not on the disk after {self._timeout_s:g} s "
                    f"(supervision.progress_timeout_s). Earlier checkpoints are untouched; look for what holds the "
                    f"disk up, or raise the limit."
                )
            self._note_progress()
        self._completed = pending.result()
        logger.info("checkpoint step=%d seconds=%.2f", self._completed.step, self._completed.seconds)

    def close(self) -> None:
        """Let the last checkpoint be completed although the run has failed. What fails here as well is only logged."""
        try:
            self.finish()
        except TbactlError as error:
            logger.error("%s", error)
        self._executor.shutdown(wait=False)


def new_state(config: ProcessConfig) -> TrainerState:
    """The state of a run that begins."""
    run = config.run
    return TrainerState(
        sampler_rng=first_rng_state(run.seed),
        stream_positions=[0] * run.searchers.num_searchers,
        settings=run.model_dump(mode="json"),
    )


def find_checkpoint(config: ProcessConfig) -> Path | None:
    """The checkpoint to resume from, that the supervisor has chosen: searchers go on from it too, so no other will do.

    Raises:
        CheckpointError: it has been damaged since.
    """
    if config.resume_checkpoint is None:
        return None
    checkpoint = config.resume_checkpoint.resolve()
    verify(checkpoint)
    return checkpoint


def restore_state(
    checkpoint: Path, config: ProcessConfig, *, note_progress: Callable[[], object] = lambda: None
) -> tuple[TrainerState, ReplayBuffer]:
    """State and replay buffer of a checkpoint; the learner loads its own part.

    Args:
        checkpoint: its directory.
        config: of the run that goes on.
        note_progress: called now and then in an insertion into that buffer that takes long.

    Raises:
        CheckpointError: a file is damaged, or it is a checkpoint of another run.
    """
    run = config.run
    state = read_trainer_state(checkpoint)
    _check_settings(state.settings, run.model_dump(mode="json"), checkpoint=checkpoint)
    state.settings = run.model_dump(mode="json")
    return state, saved_buffer(run, CheckpointLayout(checkpoint).replay, note_progress=note_progress)


def _check_settings(written: dict[str, Any], now: dict[str, Any], *, checkpoint: Path) -> None:
    """Refuse a checkpoint that somebody copied here from another run: its optimizer, prompts and streams are others."""
    written = _completed(written)
    differences = [path for path in fixed_differences(written, now) if path not in (("name",), ("runs_dir",))]
    if differences:
        listing = "; ".join(f"{dotted(path)} was {_at(written, path)}, is {_at(now, path)}" for path in differences[:5])
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise CheckpointError(f"{checkpoint} was written by a run with other settings: {listing}{more}.")


def _completed(written: dict[str, Any]) -> dict[str, Any]:
    """Written settings, those that did not exist then at their defaults; as they are where this tbactl refuses them."""
    try:
        return RunConfig.model_validate(written).model_dump(mode="json")
    except ValidationError:
        return written


def _at(settings: Any, path: KeyPath) -> str:
    for part in path:
        settings = settings.get(part) if isinstance(settings, dict) else None
    return json.dumps(settings)

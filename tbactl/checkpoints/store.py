"""The checkpoints directory of a run: writing is all or nothing, old ones leave, and the newest good one is found.

Writing has two halves. `staging` puts the files there: whoever trains waits for it, so that they are of one moment.
`complete` makes them a checkpoint (to the disk, checksums, names); it reads nothing else, and may be done in a thread
while training goes on.

checkpoints/
  step_000010/   manifest.json ...
  step_000020/
  latest -> step_000020
  .step_000030.tmp/     being written, or what a killed process left; removed before the next is written
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from safetensors import SafetensorError

from tbactl.checkpoints.manifest import make_manifest, verify
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.errors import CapacityError, CheckpointError, TbactlError, is_out_of_space

logger = logging.getLogger(__name__)

_PREFIX = "step_"
# Less free space than this is none.
_NO_SPACE_BYTES = 2**20


class CheckpointStore:
    """Writes checkpoints of one run, one at a time. One process (trainer rank 0) writes, anybody reads.

    Args:
        layout: of the run.
        keep_last: so many of the newest stay.
        keep_every: those of every so many steps stay as well; 0: none.

    Example:
        with store.writing(step=10) as checkpoint:
            learner.save(checkpoint.learner)
    """

    def __init__(self, layout: RunLayout, *, keep_last: int, keep_every: int = 0) -> None:
        self._layout = layout
        self._keep_last = keep_last
        self._keep_every = keep_every

    @contextmanager
    def writing(self, *, step: int) -> Iterator[CheckpointLayout]:
        """A directory to write into. When the block ends well, it becomes the checkpoint of `step` and `latest`.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: it cannot be written for another reason.
        """
        with self.staging(step=step) as checkpoint:
            yield checkpoint
        self.complete(step=step)

    @contextmanager
    def staging(self, *, step: int) -> Iterator[CheckpointLayout]:
        """A directory to write into, no checkpoint yet: that is what `complete` makes of it.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: it cannot be written for another reason.
        """
        root = self._layout.checkpoints
        root.mkdir(parents=True, exist_ok=True)
        for left_over in root.glob(".*.tmp"):
            _remove(left_over)
        temporary = self._temporary(step)
        temporary.mkdir()
        with self._removed_on_failure(step):
            yield CheckpointLayout(temporary)

    def complete(self, *, step: int) -> None:
        """Make what was staged the checkpoint of `step` and `latest`.

        Whatever kills the process, `latest` names a complete checkpoint: files reach the disk first, then the manifest,
        then the directory gets its name, then the link is replaced.

        Raises:
            CapacityError: the disk is full.
            CheckpointError: it cannot be written for another reason.
        """
        with self._removed_on_failure(step):
            _seal(self._temporary(step), step=step)
            self._put_in_place(self._temporary(step), self._layout.checkpoint(step))

    @contextmanager
    def _removed_on_failure(self, step: int) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            failure = _failure(error, final=self._layout.checkpoint(step))
            _remove(self._temporary(step))
            if failure is None:
                raise
            raise failure from error

    def _temporary(self, step: int) -> Path:
        final = self._layout.checkpoint(step)
        return final.with_name(f".{final.name}.tmp")

    def _put_in_place(self, temporary: Path, final: Path) -> None:
        # A resumed run comes to a step again: the checkpoint of the undone future gives way.
        undone = final.with_name(f".{final.name}.undone.tmp")
        if final.exists():
            final.rename(undone)
        temporary.rename(final)
        self._make_latest(final)
        if undone.exists():
            _remove(undone)
        for old in steps_of(self._layout.checkpoints)[: -self._keep_last]:
            if old != final and not self._is_kept_for_good(old):
                _remove(old)

    def _is_kept_for_good(self, checkpoint: Path) -> bool:
        return self._keep_every > 0 and _step_of(checkpoint) % self._keep_every == 0

    def forget_after(self, step: int) -> None:
        """Remove checkpoints of later steps: a resumed run does these steps again."""
        for checkpoint in steps_of(self._layout.checkpoints):
            if _step_of(checkpoint) > step:
                logger.warning("checkpoint=%s removed: the run continues from step %d", checkpoint.name, step)
                _remove(checkpoint)
        remaining = steps_of(self._layout.checkpoints)
        if remaining and not self._layout.latest_checkpoint.exists():
            self._make_latest(remaining[-1])

    def _make_latest(self, checkpoint: Path) -> None:
        link = checkpoint.with_name(".latest.tmp")
        _remove(link)
        link.symlink_to(checkpoint.name)
        link.replace(self._layout.latest_checkpoint)
        _sync_directory(checkpoint.parent)


def steps_of(checkpoints: Path) -> list[Path]:
    """Checkpoints of a run, oldest first, complete or not."""
    found = (path for path in checkpoints.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal())
    return sorted((path for path in found if path.is_dir() and not path.is_symlink()), key=_step_of)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def usable_checkpoint(wanted: Path) -> Path:
    """The wanted checkpoint or, when it is damaged, the newest good one before it. Says so in the log.

    Args:
        wanted: a checkpoint, a link to one, or a checkpoints directory (its newest).

    Raises:
        CheckpointError: none is good; names what is wrong with each.
    """
    wanted = wanted.resolve()
    if steps_of(wanted):
        candidates = steps_of(wanted)
    else:
        others = steps_of(wanted.parent)
        candidates = (others[: others.index(wanted)] if wanted in others else []) + [wanted]
    problems: list[str] = []
    for candidate in reversed(candidates):
        try:
            verify(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            logger.error("checkpoint=%s cannot be used: %s", candidate.name, error)
        else:
            if problems:
                logger.warning("checkpoint=%s is used instead", candidate.name)
            return candidate
    raise CheckpointError("\n".join(["no checkpoint can be used:", *problems]))


def _seal(directory: Path, *, step: int) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            _sync_file(path)
    manifest = CheckpointLayout(directory).manifest
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(make_manifest(directory, step=step)), indent=1))
    _sync_file(manifest)
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir():
            _sync_directory(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_directory = _sync_file


def _remove(path: Path) -> None:
    # rmtree refuses a link to a directory.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _failure(error: BaseException, *, final: Path) -> TbactlError | None:
    """What the failure of a write means to the user; None where the error speaks for itself.

    Called before anything is removed. Of a full disk torch only says that a file could not be written.
    """
    if isinstance(error, TbactlError) or not isinstance(error, (OSError, RuntimeError, SafetensorError)):
        return None
    problem = f"cannot write checkpoint {final}: {error}"
    existing = next(directory for directory in final.parents if directory.exists())
    if is_out_of_space(error) or shutil.disk_usage(existing).free < _NO_SPACE_BYTES:
        return CapacityError(f"{problem}. Free some disk space and resume.")
    return CheckpointError(f"{problem}. Earlier checkpoints are untouched.")

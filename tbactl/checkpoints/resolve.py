"""From what a user names as a policy to a directory in Hugging Face form."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tbactl.checkpoints.manifest import verify
from tbactl.checkpoints.store import steps_of, usable_checkpoint
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.config.tasks import POLICY_PREFIX, shipped_policy
from tbactl.errors import CheckpointError
from tbactl.policies.packaged import PACKAGE_PREFIX, packaged_policy

logger = logging.getLogger(__name__)


@contextmanager
def resolved_policy(name: str, *, task: str) -> Iterator[Path]:
    """A policy in Hugging Face form, valid inside the block.

    Args:
        name: a run directory (its newest good checkpoint), a checkpoint of one, its `policy` or `learner` directory, a
            directory in Hugging Face form, a hub name, `task:NAME` or `package:NAME`.
        task: kind of the task that `task:NAME` refers to.

    Yields:
        A directory with config, weights and tokenizer; or the hub name as it is. A checkpoint without an export is
        consolidated into a temporary directory, removed afterwards.

    Raises:
        CheckpointError: there is no policy there, or it is damaged.
        ConfigError: `task:NAME` or `package:NAME` names none.
    """
    with tempfile.TemporaryDirectory(prefix="tbactl-policy-") as scratch:
        yield resolve_policy(name, task=task, scratch=Path(scratch))


def resolve_policy(name: str, *, task: str, scratch: Path) -> Path:
    """As `resolved_policy`; `scratch` is where shards are consolidated."""
    if name.startswith(POLICY_PREFIX):
        return shipped_policy(task, name)
    if name.startswith(PACKAGE_PREFIX):
        return packaged_policy(name)
    path = Path(name).expanduser()
    if not path.exists():
        if name.count("/") == 1 and not name.startswith((".", "/", "~")):
            return Path(name)  # a hub name
        raise CheckpointError(f"{name} does not exist; name a run, a checkpoint, a policy directory, or a hub name.")
    if steps_of(RunLayout(path).checkpoints):
        path = usable_checkpoint(RunLayout(path).checkpoints)
    layout = CheckpointLayout(path)
    if layout.manifest.is_file():
        return _of_checkpoint(layout, scratch=scratch)
    if (path / "config.json").is_file():
        return path
    if (path / "learner.json").is_file():
        return _consolidated(path, scratch=scratch)
    raise CheckpointError(
        f"{path} holds no policy: it is neither a run, nor a checkpoint (manifest.json), nor a directory in Hugging "
        f"Face form (config.json)."
    )


def _of_checkpoint(layout: CheckpointLayout, *, scratch: Path) -> Path:
    if layout.policy.is_dir():
        verify(layout.root, part="policy")
        return layout.policy
    verify(layout.root, part="learner")
    return _consolidated(layout.learner, scratch=scratch)


def _consolidated(learner: Path, *, scratch: Path) -> Path:
    # Torch and transformers, for this rare case only.
    from tbactl.checkpoints.consolidate import consolidate

    logger.info("consolidating the shards in %s", learner)
    consolidate(learner, scratch)
    return scratch

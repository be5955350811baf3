"""Checkpoints of supervised training: a loadable policy directory plus what resuming needs.

Optimizer moments are safetensors and everything else is JSON; nothing is pickled. They stand in a folder of their own,
because vLLM takes every *.safetensors file beside the weights for weights. A directory appears under its final name
only when it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tbactl.errors import CheckpointError

_PROGRESS_FILE = "sft/progress.json"
_OPTIMIZER_FILE = "sft/optimizer.safetensors"
_LATEST = "latest"
_RUNNING = "running-"
_TEMPORARY_SUFFIX = ".writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands. `step` optimizer steps of stage `stage` are done; `num_drawn` of its examples are used."""

    stage: int = 0
    step: int = 0
    num_drawn: int = 0
    scheduler: dict[str, Any] = dataclasses.field(default_factory=dict)


def write_policy(directory: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write weights (safetensors), configuration and tokenizer so that transformers and vLLM load them; atomic."""
    temporary = _temporary(directory)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    _replace(temporary, directory)


def write_checkpoint(
    checkpoints: Path,
    *,
    name: str | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> Path:
    """Write a checkpoint and make `latest` name it; it has its final name only when complete.

    A checkpoint with a `name` is kept. One without gives way to the next: at most one of these exists.
    """
    directory = checkpoints / (name or f"{_RUNNING}{progress.stage}-{progress.step:07d}")
    temporary = _temporary(directory)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    state = optimizer.state_dict()
    moments = {f"{index}.{key}": value for index, entry in state["state"].items() for key, value in entry.items()}
    (temporary / _OPTIMIZER_FILE).parent.mkdir()
    save_file(moments, temporary / _OPTIMIZER_FILE)
    document = {"progress": dataclasses.asdict(progress), "param_groups": state["param_groups"]}
    (temporary / _PROGRESS_FILE).write_text(json.dumps(document))
    _replace(temporary, directory)
    pointer = _temporary(checkpoints / _LATEST)
    pointer.write_text(directory.name)
    pointer.replace(checkpoints / _LATEST)
    for outdated in checkpoints.glob(f"{_RUNNING}*"):
        if outdated != directory:
            shutil.rmtree(outdated)
    return directory


def latest_checkpoint(checkpoints: Path) -> Path:
    """The newest finished checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    try:
        return checkpoints / (checkpoints / _LATEST).read_text().strip()
    except OSError as error:
        raise CheckpointError(f"{checkpoints} holds no finished checkpoint; start without --resume") from error


def read_progress(directory: Path) -> Progress:
    """What `write_checkpoint` was given as progress.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return Progress(**_read_document(directory)["progress"])


def load_optimizer(directory: Path, *, optimizer: torch.optim.Optimizer) -> None:
    """Restore moments and learning rates.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    state: dict[int, dict[str, torch.Tensor]] = {}
    try:
        moments = load_file(directory / _OPTIMIZER_FILE)
    except Exception as error:  # safetensors has its own exception class beside OSError
        raise CheckpointError(f"cannot read {directory / _OPTIMIZER_FILE}: {error}") from error
    for name, value in moments.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": _read_document(directory)["param_groups"]})


def _read_document(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / _PROGRESS_FILE).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{directory} is no checkpoint of supervised training: {error}") from error


def _temporary(final: Path) -> Path:
    temporary = final.with_name(final.name + _TEMPORARY_SUFFIX)
    if temporary.is_dir():
        shutil.rmtree(temporary)
    return temporary


def _replace(temporary: Path, directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    temporary.rename(directory)

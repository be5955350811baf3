"""Checksums of what a run has come to: equal where two runs are equal bit for bit.

Left out is what differs between any two runs: seconds, what searchers say of themselves, and `uid`, which names the
life of the searcher that made a trajectory.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tbactl.checkpoints.manifest import checksum, verify
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.replay.snapshot import STATE_NAME, load_buffer

# Durations, rates, and states of other processes at the moment of the look.
NOT_OF_THE_RUN = re.compile(r"^(searcher/.*|sync/version_lag/.*|.*_s/sum|.*_per_s/mean|trainer/(idle|elapsed_s)/.*)$")
PARTS = ("weights", "optimizer", "buffer", "state", "metrics")
_PICKLED = ".pt"


def digests(run: Path, *, step: int) -> dict[str, str]:
    """Of each of PARTS, after the optimizer step `step`.

    Args:
        run: run directory, with a checkpoint of that step.
        step: the last one.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        TypeError: it holds something that the digest does not know, and would leave out.
    """
    layout = RunLayout(run)
    checkpoint = CheckpointLayout(layout.checkpoint(step))
    verify(checkpoint.root)
    return {
        "weights": _of_files(checkpoint.policy),
        "optimizer": _of_files(checkpoint.learner),
        "buffer": _of_lines(_buffer_lines(checkpoint.replay)),
        "state": _of_lines([_state_line(checkpoint.trainer_state)]),
        "metrics": _of_lines(metric_lines(layout.metrics)),
    }


def metric_lines(path: Path) -> list[str]:
    """The metrics of each step that was not undone, those of the run itself."""
    steps: dict[int, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        steps[record["step"]] = record["metrics"]  # a step that was done again counts as it was done last
    return [
        f"{step} {name} {value!r}"
        for step, metrics in sorted(steps.items())
        for name, value in sorted(metrics.items())
        if not NOT_OF_THE_RUN.match(name)
    ]


def _of_files(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return _of_lines(f"{file.relative_to(directory)} {_of_file(file)}" for file in files)


def _of_file(file: Path) -> str:
    return _of_lines(_tensor_lines(file)) if file.suffix == _PICKLED else checksum(file)


def _tensor_lines(file: Path) -> Iterable[str]:
    # Torch only where there is something to load. Its files hold more than the values: where these lie in memory.
    import torch

    from tbactl.trainer.deepspeed_backend import SAFE_CLASSES

    with torch.serialization.safe_globals(SAFE_CLASSES):
        yield from _flat(torch.load(file, map_location="cpu", weights_only=True), path="")


def _flat(value: Any, *, path: str) -> Iterable[str]:
    import torch

    from tbactl.trainer.deepspeed_backend import SAFE_CLASSES

    if isinstance(value, dict):
        for key in value:
            yield from _flat(value[key], path=f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _flat(item, path=f"{path}/{number}")
    elif isinstance(value, torch.Tensor):
        data = value.detach().contiguous().view(torch.uint8).numpy() if value.dim() else repr(value.item()).encode()
        yield f"{path} {value.dtype} {tuple(value.shape)} {hashlib.blake2b(data).hexdigest()}"
    elif isinstance(value, bool | int | float | str | None):
        yield f"{path} {value!r}"
    elif type(value) in SAFE_CLASSES:
        yield from _flat(vars(value), path=f"{path}/{type(value).__name__}")
    else:
        raise TypeError(f"{path}: the digest does not know what a {type(value).__name__} holds; teach it here.")


def _buffer_lines(directory: Path) -> Iterable[str]:
    state = json.loads((directory / STATE_NAME).read_bytes())
    yield json.dumps({name: value for name, value in state.items() if not name.startswith("data_")}, sort_keys=True)
    buffer = load_buffer(directory, capacity=sys.maxsize, capacity_per_prompt=sys.maxsize)
    for prompt in buffer.prompts.values():
        yield f"prompt {prompt.prompt_id} {prompt.prompt_token_ids} {prompt.last_draw}"
        for stored in prompt.trajectories:
            own = replace(stored, uid=0, data=b"")
            yield f"{own!r} {replace(stored.to_trajectory(), uid=0)!r}"


def _state_line(path: Path) -> str:
    state = json.loads(path.read_bytes())
    own = {name: value for name, value in state.items() if name not in ("training_s", "settings")}
    return json.dumps(own, sort_keys=True)


def _of_lines(lines: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()

"""`tbactl eval --frontier RUN...`: what is to be evaluated, what was already, and the points that the task draws."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tbactl import __version__, registry
from tbactl.checkpoints.store import steps_of
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.evaluation_loading import evaluation_config, run_of_checkpoint
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.errors import ChildFailedError, ConfigError
from tbactl.evaluation.hooks import FrontierDrawing, FrontierNeeds, FrontierPoint
from tbactl.types import EvaluationResult

RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One evaluation of a frontier, and where its result lies or will lie."""

    run: str
    step: int
    config: EvaluationConfig
    directory: Path


def planned_evaluations(
    names: Sequence[str], *, given: Mapping[str, Any], overrides: Sequence[str], output: Path
) -> list[Planned]:
    """Of each run the policy it started from and all its checkpoints; of anything else that names a policy, that one.

    Args:
        names: as CHECKPOINT of `tbactl eval`.
        given: as in `evaluation_config`.
        overrides: likewise.
        output: directory under which each evaluation gets its own, named by what is measured: an evaluation that two
            runs share is one, and other settings never meet an old result.

    Raises:
        ConfigError: a setting is wrong, a run is named twice, tasks differ or draw no frontier, or lack options for it.
    """
    if len(set(names)) < len(names):
        raise ConfigError("--frontier: a run is named twice; name each once.")
    planned: list[Planned] = []
    for name, label in zip(names, _labels(names), strict=True):
        for checkpoint, step in _policies(name):
            config = evaluation_config(name, given={**given, "checkpoint": checkpoint}, overrides=overrides)
            directory = output / "evaluations" / _directory_name(config)
            config = config.model_copy(update={"output": directory})
            planned.append(Planned(run=label, step=step, config=config, directory=directory))
    _check_configs([item.config for item in planned])
    _check_options(planned)
    return planned


def evaluated_points(
    planned: Sequence[Planned],
    *,
    evaluate: Callable[[EvaluationConfig], object],
    on_point: Callable[[Planned, bool], None],
) -> Iterator[FrontierPoint]:
    """The result of each evaluation: an earlier one of the same policy with the same settings, else a new one.

    Args:
        planned: what to evaluate.
        evaluate: runs an evaluation, which leaves `result.json` in its output directory.
        on_point: told before each, and whether it was done earlier.

    Raises:
        ChildFailedError: an evaluation left no result.
    """
    for item in planned:
        result = _result(item.directory)
        on_point(item, result is not None)
        if result is None:
            evaluate(item.config)
            result = _result(item.directory)
        if result is None:
            raise ChildFailedError(f"the evaluation of {item.config.checkpoint} left no {RESULT_FILE}.")
        yield FrontierPoint(run=item.run, step=item.step, result=result)


def draw(points: Sequence[FrontierPoint], *, task: str, output: Path) -> list[Path]:
    """Let the task draw; returns the files."""
    return _drawing(task).draw_frontier(points, output=output)


def metrics_of(task: str) -> Sequence[str]:
    """Names of the metrics that a task's frontier is about."""
    return _drawing(task).frontier_metrics()


def _drawing(task: str) -> FrontierDrawing:
    task_class = registry.load("tbactl.tasks", task)
    if not issubclass(task_class, FrontierDrawing):
        raise ConfigError(f"--frontier: the task '{task}' draws no frontier; evaluate its checkpoints one by one.")
    return task_class


def _labels(names: Sequence[str]) -> list[str]:
    """The runs' own names where they differ, else as the user wrote them."""
    short = [Path(name).resolve().name if Path(name).exists() else name for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _policies(name: str) -> Iterator[tuple[str, int]]:
    root = Path(name).expanduser()
    checkpoints = [path for path in steps_of(RunLayout(root).checkpoints) if CheckpointLayout(path).manifest.is_file()]
    run = run_of_checkpoint(root)
    if not checkpoints or run is None:
        yield name, _step(root)
        return
    if _step(checkpoints[0]) > 0:
        yield run.policy.path, 0
    for path in checkpoints:
        yield str(path), _step(path)


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix("step_")
    return int(number) if number.isdigit() else 0


def _check_configs(configs: Sequence[EvaluationConfig]) -> None:
    kinds = sorted({config.task.kind for config in configs})
    if len(kinds) > 1:
        raise ConfigError(f"--frontier compares runs of one task; these are of {', '.join(kinds)}.")
    if any(config.harness != "native" for config in configs):
        raise ConfigError("--frontier needs the task's own evaluation; leave --harness away.")
    _drawing(kinds[0])


def _check_options(planned: Sequence[Planned]) -> None:
    task_class = registry.load("tbactl.tasks", planned[0].config.task.kind)
    if not issubclass(task_class, FrontierNeeds):
        return
    problems: dict[str, None] = {}
    for item in planned:
        options = {"reference_policy": item.config.reference_policy, **item.config.task.options}
        problems |= {f"--frontier: {item.run}: {problem}": None for problem in task_class.frontier_problems(options)}
    if problems:
        raise ConfigError(*problems)


def _directory_name(config: EvaluationConfig) -> str:
    """The checkpoint's name, and a digest of all that must be equal for an earlier result to count."""
    root = Path(config.checkpoint).expanduser()
    files = [file for file in (root / "manifest.json", *sorted(root.glob("*.safetensors"))) if file.is_file()]
    measured = {
        "config": config.model_dump(mode="json", exclude={"output"}),
        "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
        "tbactl": __version__,
    }
    digest = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:10]
    # Of RUN/checkpoints/step_000010 the run and the step.
    parts = [part for part in root.parts[-3:] if part != "checkpoints"]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', '-'.join(parts)).strip('.-')}-{digest}"


def _result(directory: Path) -> EvaluationResult | None:
    try:
        return msgspec.convert(json.loads((directory / RESULT_FILE).read_bytes()), EvaluationResult)
    except (OSError, ValueError):  # not there, or its writer was killed
        return None

"""One evaluation of one policy: find it, start an engine, let the task or lm-eval measure."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tbactl import registry
from tbactl.checkpoints.resolve import resolved_policy
from tbactl.config.engine import EngineConfig
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.tasks import build_task
from tbactl.engines.generate import generate
from tbactl.engines.stop_strings import with_stop_strings
from tbactl.errors import ConfigError
from tbactl.evaluation.hooks import CheckpointEvaluation
from tbactl.protocols import Engine, Generate, Task
from tbactl.types import Completion, EvaluationResult, Prompt, SamplingParams

logger = logging.getLogger(__name__)

# Sequences that advance together. More fills the cores no better and takes memory.
MAX_CONCURRENT_SEQUENCES = 128


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Measure and return the result as plain data; write it under `config.output` as well.

    Raises:
        ConfigError: a name or a setting is wrong.
        CheckpointError: there is no policy at `config.checkpoint`.
        TaskError: the task's data cannot be read.
    """
    with resolved_policy(config.checkpoint, task=config.task.kind) as policy:
        return _evaluate_policy(as_long_as_needed(config, fitted(config, policy=policy)), policy=policy)


def fitted(config: EvaluationConfig, *, policy: Path) -> EvaluationConfig:
    """The configuration with default lengths halved to a policy's positions, where nobody asked for any lengths."""
    try:
        positions = json.loads((policy / "config.json").read_bytes()).get("max_position_embeddings")
    except (OSError, ValueError):  # a hub name; the engine will say what is wrong
        return config
    is_asked = config.model_fields_set & {"max_prompt_tokens", "max_new_tokens"}
    if is_asked or not positions or config.max_prompt_tokens + config.max_new_tokens < positions:
        return config
    half = (positions - 1) // 2
    logger.info("the policy has %d positions: at most %d tokens for prompts and for completions", positions, half)
    return config.model_copy(update={"max_prompt_tokens": half, "max_new_tokens": half})


def as_long_as_needed(config: EvaluationConfig, fit: EvaluationConfig) -> EvaluationConfig:
    """Completions as short as the task's own are, where nobody asked for a length.

    Args:
        config: as asked for.
        fit: the same, fitted to the policy.
    """
    if "max_new_tokens" in config.model_fields_set:
        return fit
    model = getattr(registry.load("tbactl.tasks", config.task.kind), "options_model", None)
    own = None if model is None else model.model_fields.get("max_new_tokens")
    if own is None:
        return fit
    own_length = config.task.options.get("max_new_tokens", own.default)
    if not isinstance(own_length, int):  # the task will say so
        return fit
    return fit.model_copy(update={"max_new_tokens": min(own_length, fit.max_new_tokens)})


def _evaluate_policy(config: EvaluationConfig, *, policy: Path) -> dict[str, Any]:
    task = build_task(config.task.kind, task_options(config))
    try:
        with _engine(config, policy) as engine:
            if config.harness == "lm-eval":
                return _by_harness(config, task=task, engine=engine, policy=policy)
            return _by_task(config, task=task, engine=engine, policy=policy)
    finally:
        task.close()


def task_options(config: EvaluationConfig) -> dict[str, Any]:
    """The task's options, with what the evaluation says about its data and samples.

    Raises:
        ConfigError: the evaluation asks for something that the task has no option for.
    """
    asked: dict[str, Any] = {
        "data": None if config.data is None else str(config.data),
        "num_samples": config.num_samples,
        "temperature": config.temperature,
        "max_new_tokens": config.max_new_tokens,
    }
    model = getattr(registry.load("tbactl.tasks", config.task.kind), "options_model", None)
    known = set() if model is None else set(model.model_fields)
    options = dict(config.task.options)
    if "reference_policy" in known:
        options.setdefault("reference_policy", config.reference_policy)
    for name, value in asked.items():
        if name in known and value is not None:
            options[name] = value
        elif name in ("data", "num_samples") and value not in (None, 1):
            # The others say how to sample, which such a task decides itself; these say what is measured.
            raise ConfigError(f"{name} = {value!r}: the task '{config.task.kind}' has no option of that name.")
    return options


@contextlib.contextmanager
def _engine(config: EvaluationConfig, policy: Path) -> Iterator[Engine]:
    started = time.monotonic()
    engine: Engine = registry.load("tbactl.engines", config.engine)(
        EngineConfig(
            policy_directory=policy,
            dtype=config.dtype,
            seed=config.seed,
            max_model_tokens=config.max_prompt_tokens + config.max_new_tokens,
            max_concurrent_sequences=MAX_CONCURRENT_SEQUENCES,
            trust_remote_code=config.trust_remote_code,
            options=config.engine_options,
        )
    )
    logger.info("engine=%s seconds=%.1f", config.engine, time.monotonic() - started)
    try:
        yield engine
    finally:
        engine.close()


def _by_task(config: EvaluationConfig, *, task: Task, engine: Engine, policy: Path) -> dict[str, Any]:
    result = _measured(config, task=task, answer=partial(_answer, engine, config))
    plain: dict[str, Any] = msgspec.to_builtins(result)
    plain |= {"harness": "native", "checkpoint": config.checkpoint, "policy": policy.name, "engine": config.engine}
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        (config.output / "result.json").write_text(json.dumps(plain, indent=2) + "\n")
    return plain


def _answer(
    engine: Engine,
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    num_completions: int,
    sampling: SamplingParams,
) -> list[list[Completion]]:
    return generate(
        engine,
        prompts,
        num_completions,
        with_stop_strings(sampling, config.stop_strings),
        max_prompt_tokens=config.max_prompt_tokens,
    )


def _measured(config: EvaluationConfig, *, task: Task, answer: Generate) -> EvaluationResult:
    if isinstance(task, CheckpointEvaluation):
        return task.evaluate_checkpoint(
            answer, limit=config.limit, seed=config.seed, policy=config.checkpoint, output=config.output
        )
    return task.evaluate(answer, limit=config.limit, seed=config.seed, policy_version=0)


def _by_harness(config: EvaluationConfig, *, task: Task, engine: Engine, policy: Path) -> dict[str, Any]:
    # lm-eval is an extra of its own, and slow to import.
    from tbactl.evaluation.lm_eval_adapter import own_task, run

    prompts = task.evaluation_prompts(limit=config.limit, seed=config.seed)
    results = run(
        engine,
        [own_task(task, prompts, max_new_tokens=config.max_new_tokens)],
        max_new_tokens=config.max_new_tokens,
        limit=0,
        seed=config.seed,
        model_name=Path(config.checkpoint).resolve().name,
        output=config.output,
    )
    return results | {"harness": "lm-eval", "checkpoint": config.checkpoint}

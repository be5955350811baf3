"""The configuration of an evaluation: from the run that made the checkpoint, the command's options, and `--set`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbactl import registry
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.layout import RunLayout
from tbactl.config.loading import validated
from tbactl.config.overrides import apply_overrides
from tbactl.config.problems import Problem
from tbactl.config.sections import RunConfig
from tbactl.config.settings import Settings
from tbactl.config.tasks import GROUP
from tbactl.errors import CheckpointError, ConfigError, TbactlError

DEFAULT_TEMPERATURE = 0.7
HARNESSES = ("native", "lm-eval")
# RUN/checkpoints/step_000010/policy: three levels below RUN.
LEVELS_BELOW_RUN = 3


def evaluation_config(checkpoint: str, *, given: Mapping[str, Any], overrides: Sequence[str] = ()) -> EvaluationConfig:
    """Combine what is known about a checkpoint with what the user asked for.

    Args:
        checkpoint: a path, a hub name, or `task:NAME`.
        given: dotted settings by the command's options; None where an option was not used.
        overrides: `dotted.key=value`.

    Raises:
        ConfigError: with one sentence for every mistake found.
        CheckpointError: the configuration of the checkpoint's run is damaged.
    """
    settings = Settings()
    run = run_of_checkpoint(Path(checkpoint))
    if run is not None:
        for name, value in _as_in_run(run).items():
            settings.assign(tuple(name.split(".")), value, origin="the checkpoint's run")
    settings.assign(("checkpoint",), checkpoint, origin="CHECKPOINT")
    for name, value in given.items():
        if value is not None:
            option = f"--{name.removesuffix('.kind').replace('_', '-')}"
            shown = str(value) if isinstance(value, Path) else value
            _assign_option(settings, name, shown, option=option)
    problems = apply_overrides(settings, overrides)
    if settings.get(("engine",)) is None:
        settings.assign(("engine",), "vllm" if find_spec("vllm") else "transformers", origin="")
    if settings.get(("num_samples",)) not in (None, 1) and settings.get(("temperature",)) is None:
        settings.assign(("temperature",), DEFAULT_TEMPERATURE, origin="")
    config = validated(EvaluationConfig, settings, check=evaluation_problems, problems=problems)
    if problems or config is None:
        raise ConfigError(*problems)
    return config


def _assign_option(settings: Settings, name: str, value: Any, *, option: str) -> None:
    # Options of one task say nothing to another.
    if name == "task.kind" and settings.get(("task", "kind")) not in (None, value):
        settings.assign(("task",), {}, origin=option)
        settings.assign(("stop_strings",), [], origin=option)
    # Nor do arguments of one engine to another.
    if name == "engine" and settings.get(("engine",)) not in (None, value):
        settings.assign(("engine_options",), {}, origin=option)
    settings.assign(tuple(name.split(".")), value, origin=option)


def run_of_checkpoint(checkpoint: Path) -> RunConfig | None:
    """The configuration of the run that a path lies in; None when it is not of a run.

    Raises:
        CheckpointError: there is a run, but its configuration is damaged.
    """
    if not checkpoint.exists():
        return None
    path = checkpoint.absolute()
    for directory in (path, *list(path.parents)[:LEVELS_BELOW_RUN]):
        resolved = RunLayout(directory).resolved_config
        if resolved.is_file():
            try:
                return RunConfig.model_validate_json(resolved.read_bytes())
            except ValidationError as error:
                raise CheckpointError(
                    f"{resolved} is damaged or of another version of tbactl: {error.error_count()} problem(s); copy "
                    f"the checkpoint's `policy` directory elsewhere and evaluate it with explicit options."
                ) from None
    return None


def _as_in_run(run: RunConfig) -> dict[str, Any]:
    # What the task's options say about an evaluation holds during the run, so it holds here.
    of_task = {name: run.task.options[name] for name in ("num_samples", "temperature") if name in run.task.options}
    return {
        "task.kind": run.task.kind,
        "task.options": dict(run.task.options),
        "reference_policy": run.policy.path,
        "engine": run.searchers.engine,
        "engine_options": dict(run.searchers.engine_options),
        "limit": run.evaluation.num_prompts,
        "seed": run.seed,
        "max_prompt_tokens": run.searchers.max_prompt_tokens,
        "max_new_tokens": run.task.options.get("max_new_tokens", run.searchers.max_new_tokens),
        "stop_strings": list(run.searchers.stop_strings),
        # Not trust_remote_code: a checkpoint, which may be a stranger's, does not decide whether its code is run.
        "dtype": run.policy.dtype,
        **(of_task if of_task.get("num_samples", 1) != 1 else {}),
    }


def evaluation_problems(config: EvaluationConfig) -> Iterator[Problem]:
    """What the settings of an evaluation must satisfy together."""
    if config.num_samples > 1 and config.temperature == 0.0:
        yield Problem(
            ("temperature",),
            f"temperature = 0 gives num_samples = {config.num_samples} equal completions; raise it.",
        )
    if config.harness == "lm-eval" and config.num_samples > 1:
        yield Problem(("num_samples",), "num_samples > 1 has no effect with harness = lm-eval; use the native harness.")
    if config.harness not in _harnesses(config.task.kind):
        yield Problem(
            ("harness",),
            f"harness = {config.harness} does not measure the task '{config.task.kind}', whose reward is no exact "
            f"match of texts; use the native harness.",
        )
    if config.harness == "lm-eval" and find_spec("lm_eval") is None:
        yield Problem(
            ("harness",),
            "harness = lm-eval needs the package 'lm_eval', which is not installed; `pip install 'tbactl[eval]'`.",
        )
    if config.data is not None and not config.data.is_file():
        yield Problem(("data",), f"data = {config.data}: there is no such file.")
    if config.checkpoint.startswith(("/", "./", "../", "~")) and not Path(config.checkpoint).is_dir():
        yield Problem(("checkpoint",), f"{config.checkpoint}: there is no such directory.")


def _harnesses(task: str) -> Sequence[str]:
    """Those that can evaluate a task: all, where it says nothing."""
    try:
        return getattr(registry.load(GROUP, task), "harnesses", HARNESSES)
    except TbactlError:  # said where the task's name is checked
        return HARNESSES

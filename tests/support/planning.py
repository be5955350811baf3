"""Scenarios and finished runs for tests of the planner: small, round numbers, no randomness unless asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbactl.config.layout import RunLayout
from tbactl.config.loading import validated
from tbactl.config.sections import RunConfig
from tbactl.config.settings import Settings
from tbactl.planning.hardware import ModelSection
from tbactl.planning.scenario import Costs, Scenario

# 7.5 billion parameters, the example of the ZeRO paper (arXiv 1910.02054, figure 1).
LARGE = ModelSection(
    num_parameters=7_500_000_000,
    num_layers=32,
    hidden_size=4096,
    num_key_value_heads=8,
    head_size=128,
    vocabulary_size=32_000,
)


def run_config(**settings: Any) -> RunConfig:
    """A run with fakes; `section__name=value` changes a setting."""
    values: dict[str, Any] = {
        "name": "planned",
        "task": {"kind": "fake"},
        "policy": {"path": "none"},
        "searchers": {"engine": "fake", "num_completions": 4, "max_concurrent_groups": 4},
        "replay": {"initial_trajectories": 16},
        "trainer": {"kind": "fake", "max_steps": 50, "prompts_per_step": 4, "completions_per_prompt": 4},
        "checkpoint": {"period": 0},
    }
    built = Settings()
    built.merge(values, file="test", lines={})
    for name, value in settings.items():
        built.assign(tuple(name.split("__")), value, origin="test")
    problems: list[str] = []
    config = validated(RunConfig, built, check=lambda run: iter(()), problems=problems)
    assert config is not None and not problems, problems
    return config


def scenario(
    *,
    num_searchers: int = 1,
    costs: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    **settings: Any,
) -> Scenario:
    """Trajectories take a searcher 0.1 s and the trainer 0.05 s; nothing else takes time.

    Args:
        num_searchers: of the run.
        costs: changed costs.
        about: changed fields of the scenario itself.
        settings: as of `run_config`.
    """
    values = {"generate_s": 0.1, "train_s": 0.05, "generate_spread": 0.0, "train_spread": 0.0} | (costs or {})
    given = {"max_steps": 10_000} | (about or {})
    return Scenario(run=run_config(**settings), costs=Costs(**values), **given).with_searchers(num_searchers)


def metrics_of_step(step: int, *, seconds: float = 2.0, idle: float = 0.0, ring_fill: float = 0.1) -> dict[str, float]:
    """A searcher makes 10 trajectories a second, a batch of 16 takes 1.6 s to train and 0.4 s to publish."""
    return {
        "trainer/step_s/sum": seconds,
        "trainer/wait_s/sum": 0.0,
        "trainer/publish_s/sum": 0.4,
        "trainer/elapsed_s/value": seconds * step,
        "searcher/sync_s/max": 0.2,
        "searcher/idle/mean": idle,
        "searcher/ring_fill/max": ring_fill,
        "searcher/completions/total": 20.0 * step,
        "intake/trajectories/total": 20.0 * step,
        "intake/groups/total": 5.0 * step,
        "intake/completion_tokens/mean": 30.0,
        "replay/prompts/value": 5.0 * step,
        "replay/eligible_prompts/value": 4.0 * step,
    }


def make_run(
    directory: Path, lines: list[dict[str, Any]], *, config: RunConfig | None = None, gpus: Sequence[str] = ()
) -> Path:
    """A run directory with these lines of metrics."""
    layout = RunLayout(directory)
    layout.config.mkdir(parents=True)
    layout.resolved_config.write_text((config or run_config()).model_dump_json())
    layout.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    layout.environment.write_text(json.dumps({"cores": [0, 1], "gpus": list(gpus), "memory_bytes": 8 * 2**30}))
    return directory


def steps(number: int, **changes: float) -> list[dict[str, Any]]:
    """Lines of metrics."""
    return [{"step": step, "metrics": metrics_of_step(step, **changes)} for step in range(1, number + 1)]

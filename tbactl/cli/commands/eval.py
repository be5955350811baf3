"""`tbactl eval`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl.cli.arguments import RUNS_DIRECTORY, AsJson, Overrides, command_app, find_run
from tbactl.cli.child import run_child
from tbactl.cli.frontier import Planned, draw, evaluated_points, metrics_of, planned_evaluations
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.evaluation_loading import evaluation_config
from tbactl.config.hub import NEEDED, may_be_on_hub
from tbactl.errors import ChildFailedError, ConfigError
from tbactl.evaluation.hooks import FrontierPoint
from tbactl.types import EvaluationResult

TEMPLATE_CHARACTERS = 100

app = command_app()


@app.command("eval")
def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT",
            help="A run (directory, name, or 'latest'), one of its checkpoints, a model in Hugging Face form "
            "(directory or hub name), task:NAME for a policy that the task ships, or package:NAME.",
        ),
    ],
    task: Annotated[
        str | None, typer.Option(help="Name of a task; the default is that of the checkpoint's run.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Problems from this JSONL file instead of the held-out split.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Number of prompts; 0 is all of them.")] = None,
    num_samples: Annotated[
        int | None, typer.Option("--num-samples", help="Completions a prompt: more than 1 gives avg@k and pass@k.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature, 0 is greedy; the default is the task's own.")
    ] = None,
    harness: Annotated[
        str | None, typer.Option(metavar="native|lm-eval", help="The task's own evaluation, or lm-evaluation-harness.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="vllm|transformers", help="The default is vllm where it is installed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Write results, samples and log here as well.")
    ] = None,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="Take several: evaluate all checkpoints of runs where that was not done before, and draw what was "
            "gained against the divergence, in --output (default runs/frontier).",
        ),
    ] = False,
    overrides: Overrides = [],  # noqa: B006 typer wants the default here and copies it
    as_json: AsJson = False,
) -> int:
    """Measure a checkpoint on a task.

    For a run or one of its checkpoints everything not given (task options, prompts, token limits, seed) is as in the
    run's own evaluation, so the numbers compare. `--set` changes the rest: --set task.options.difficulty=all.
    """
    given = {
        "task.kind": task,
        "data": data,
        "limit": limit,
        "num_samples": num_samples,
        "temperature": temperature,
        "harness": harness,
        "engine": engine,
        "output": output,
    }
    names = [_checkpoint(name) for name in checkpoints]
    if frontier:
        given.pop("output")
        return _draw_frontier(names, given=given, overrides=overrides, output=output, as_json=as_json)
    if len(names) > 1:
        raise ConfigError(f"one CHECKPOINT is evaluated at a time, not {len(names)}; --frontier compares several.")
    config = evaluation_config(names[0], given=given, overrides=overrides)
    if not as_json:
        _say(f"evaluating {config.checkpoint} on {config.task.kind} with {config.engine} ...")
    result = _evaluated(config)
    if as_json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def _evaluated(config: EvaluationConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tbactl-eval-") as folder:
        file = Path(folder) / "evaluation.json"
        # What nobody asked for is left out, so that the evaluation can tell it from what was.
        file.write_text(config.model_dump_json(indent=2, exclude_unset=True), encoding="utf-8")
        log = (config.output or Path(folder)) / "evaluation.log"
        return _result(run_child("tbactl.evaluation", ["--config", str(file)], log=log, scratch=Path(folder)))


def _draw_frontier(
    names: list[str], *, given: dict[str, Any], overrides: list[str], output: Path | None, as_json: bool
) -> int:
    directory = output or RUNS_DIRECTORY / "frontier"
    planned = planned_evaluations(names, given=given, overrides=overrides, output=directory)

    def say(item: Planned, is_done: bool) -> None:
        if not as_json:
            _say(f"{item.run}, step {item.step}: {'found in' if is_done else 'evaluating into'} {item.directory}")

    points = list(evaluated_points(planned, evaluate=_evaluated, on_point=say))
    files = draw(points, task=planned[0].config.task.kind, output=directory)
    if as_json:
        print_json(
            {
                "points": [{"run": point.run, "step": point.step, "metrics": point.result.metrics} for point in points],
                "files": [str(file) for file in files],
            }
        )
        return 0
    _print_points(points, metrics=metrics_of(planned[0].config.task.kind))
    for file in files:
        typer.echo(plain(str(file)))
    return 0


def _print_points(points: list[FrontierPoint], *, metrics: Sequence[str]) -> None:
    rows = [(point.run, str(point.step), *(_with_interval(point.result, name) for name in metrics)) for point in points]
    print_table(("run", "step", *metrics), rows)


def _with_interval(result: EvaluationResult, name: str) -> str:
    if name not in result.metrics:
        return ""
    interval = result.intervals.get(name)
    return f"{result.metrics[name]:.4f}" + (f" ({_interval(list(interval))})" if interval else "")


def _say(line: str) -> None:
    typer.echo(plain(line), err=True)


def _checkpoint(name: str) -> str:
    if name.startswith(("task:", "package:")) or os.path.exists(os.path.expanduser(name)):
        return name
    if name == "latest" or os.path.exists(RUNS_DIRECTORY / name):
        return str(find_run(name))
    if may_be_on_hub(name):
        return name
    raise ConfigError(f"there is no run, checkpoint or directory '{name}', and it is no hub name: {NEEDED}.")


def _result(output: str) -> dict[str, Any]:
    try:
        return json.loads(output)
    except ValueError:
        raise ChildFailedError(f"tbactl.evaluation wrote no result but {output[:200]!r}.") from None


def _print_result(result: dict[str, Any]) -> None:
    if "results" in result:
        _print_harness_results(result["results"])
        return
    intervals = result.get("intervals", {})
    rows = [(name, f"{value:.4f}", _interval(intervals.get(name))) for name, value in result["metrics"].items()]
    print_table(("metric", "value", "95 % interval"), rows)
    typer.echo(f"{result['num_prompts']} prompt{'' if result['num_prompts'] == 1 else 's'}, {result['seconds']:.1f} s")
    if template := result.get("template"):
        typer.echo(f"{result['num_shots']} solved examples in the prompt; template {_shortened(json.dumps(template))}")


def _shortened(text: str) -> str:
    return text if len(text) <= TEMPLATE_CHARACTERS else f"{text[:TEMPLATE_CHARACTERS]} ..."


def _print_harness_results(results: dict[str, dict[str, Any]]) -> None:
    # lm-eval's layout: one table a task, metric and filter in one key, text values beside the numbers.
    rows = [
        (task, name, f"{value:.4f}")
        for task, metrics in results.items()
        for name, value in metrics.items()
        if isinstance(value, float)
    ]
    print_table(("task", "metric, filter", "value"), rows)


def _interval(bounds: list[float] | None) -> str:
    return f"{bounds[0]:.4f} .. {bounds[1]:.4f}" if bounds else ""

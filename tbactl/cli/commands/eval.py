"""`tbactl eval`."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tbactl.cli.arguments import RUNS_DIRECTORY, AsJson, Overrides, command_app, find_run
from tbactl.cli.child import run_child
from tbactl.cli.output import plain, print_json, print_table
from tbactl.config.evaluation_loading import evaluation_config
from tbactl.errors import ChildFailedError, ConfigError

app = command_app()


@app.command("eval")
def evaluate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A run (directory, name, or 'latest'), one of its checkpoints, a model in Hugging Face form "
            "(directory or hub name), or task:NAME for a policy that the task ships.",
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
        float | None, typer.Option(help="Sampling temperature; 0, the default for one sample, is greedy.")
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
    config = evaluation_config(_checkpoint(checkpoint), given=given, overrides=overrides)
    with tempfile.TemporaryDirectory(prefix="tbactl-eval-") as folder:
        file = Path(folder) / "evaluation.json"
        file.write_text(config.model_dump_json(indent=2), encoding="utf-8")
        log = (output or Path(folder)) / "evaluation.log"
        if not as_json:
            line = f"evaluating {config.checkpoint} on {config.task.kind} with {config.engine} ..."
            typer.echo(plain(line), err=True)
        result = _result(run_child("tbactl.evaluation", ["--config", str(file)], log=log, scratch=Path(folder)))
    if as_json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def _checkpoint(name: str) -> str:
    if name.startswith("task:") or os.path.exists(os.path.expanduser(name)):
        return name
    if name == "latest" or os.path.exists(RUNS_DIRECTORY / name):
        return str(find_run(name))
    if _may_be_on_hub(name):
        return name
    raise ConfigError(
        f"there is no run, checkpoint or directory '{name}', and it is no hub name (ORG/NAME, with "
        f"HF_HUB_OFFLINE unset or the model in the cache)."
    )


def _may_be_on_hub(name: str) -> bool:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) or Path(name).parent.is_dir():
        return False
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    cached = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub"), f"models--{name.replace('/', '--')}")
    return os.environ.get("HF_HUB_OFFLINE") != "1" or cached.is_dir()


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

"""The plain form: one `key=value` line for each optimizer step and each event, for pipes, files and `--plain`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from tbactl.config.layout import RunLayout
from tbactl.config.sections import RunConfig
from tbactl.dashboard.metric_names import PLAIN
from tbactl.dashboard.tail import JsonlTail
from tbactl.ipc.control_page import ControlPage


class LineSource:
    """Follows a run's files; `new_lines` gives what was added since the last call.

    Args:
        layout: of the run.
        config: of the run.
        attempt: leave out what was before this attempt began; None: show everything.
    """

    def __init__(self, layout: RunLayout, *, config: RunConfig, attempt: int | None = None) -> None:
        self._max_steps = config.trainer.max_steps
        self._metrics = JsonlTail(layout.metrics, from_end=attempt is not None)
        self._events = JsonlTail(layout.events)
        self._skip_until = attempt

    def new_lines(self, page: ControlPage | None = None) -> Iterator[str]:
        """Lines for new events and steps, in the order of time; with a page also the searchers' speed."""
        timed = [(_wall_s(event), event_line(event)) for event in self._events.read_new() if self._is_wanted(event)]
        timed += [
            (float(step.get("wall_time") or 0.0), step_line(step, max_steps=self._max_steps, page=page))
            for step in self._metrics.read_new()
        ]
        return (line for _, line in sorted(timed, key=lambda pair: pair[0]))

    def _is_wanted(self, event: Mapping[str, Any]) -> bool:
        if event.get("kind") == "run_started" and event.get("details", {}).get("attempt") == self._skip_until:
            self._skip_until = None
        return self._skip_until is None


def _wall_s(event: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(event["time"]).timestamp()
    except (KeyError, TypeError, ValueError):  # a damaged line: shown first
        return 0.0


def event_line(event: Mapping[str, Any]) -> str:
    """`t=12.3 event=child_died process=searcher-0 pid=4711 how="killed by SIGKILL"`."""
    details = event.get("details")
    pairs = {
        "t": event.get("elapsed_s", 0.0),
        "event": event.get("kind", "?"),
        "process": event.get("process", "?"),
        **(details if isinstance(details, dict) else {}),
    }
    # Tables are for programs.
    return _line({name: value for name, value in pairs.items() if not isinstance(value, list)})


def step_line(step: Mapping[str, Any], *, max_steps: int, page: ControlPage | None = None) -> str:
    """`step=3/60 time_s=12.3 reward=0.31 ...`: the metrics most asked for; all of them are in metrics.jsonl."""
    metrics = step.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    pairs: dict[str, Any] = {"step": f"{step.get('step', '?')}/{max_steps}", "time_s": step.get("time_s", 0.0)}
    pairs |= {short: metrics[key] for short, key in PLAIN.items() if key in metrics}
    if page is not None:
        speeds = [page.searcher(index).get_float("f_tokens_per_s") for index in range(page.num_searchers)]
        pairs |= {"tokens_per_s": sum(speeds), "buffer": page.trainer().get("buffer_trajectories")}
    return _line(pairs)


def _line(pairs: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_shown(value)}" for name, value in pairs.items())


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    # JSON escapes control characters and everything else that is not ASCII; a plain word needs no quotes.
    text = json.dumps(value)
    return value if isinstance(value, str) and value and text == f'"{value}"' and " " not in value else text

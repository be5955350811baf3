"""Events and durations in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tbactl.terminal import printable_line

Mood = Literal["calm", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvent:
    """An event as it is shown; `text` is safe for a terminal but not escaped for markup."""

    elapsed_s: float
    kind: str
    process: str
    text: str
    mood: Mood = "calm"


MOODS: Mapping[str, Mood] = {
    "alarm": "warning",
    "checkpoint": "good",
    "child_died": "bad",
    "child_killed": "warning",
    "child_restarting": "warning",
    "child_stalled": "bad",
    "evaluation": "good",
    "evaluation_missed": "warning",
    "reclaimed": "warning",
    "run_failing": "bad",
    "shutdown_step_failed": "bad",
    "training_finished": "good",
    "view_failed": "warning",
}


def _evaluation(details: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value:.3f}" for name, value in list(details["metrics"].items())[:1])
    return f"held-out {shown} at v{details['policy_version']}"


ALARMS = {"evaluation": "an evaluation failed", "delivery": "a group could not be delivered"}


def _alarm(details: Mapping[str, Any]) -> str:
    about = details.get("about", "none")
    if about == "weights":
        return f"new weights: alarm, log-prob difference {details['logprob_difference']:.1e}"
    return ALARMS.get(about, "alarm")


SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "alarm": _alarm,
    "checkpoint": lambda d: f"checkpoint at step {d['step']}",
    "child_died": lambda d: f"died: {d['how']}",
    "child_ended": lambda d: "has ended",
    "child_killed": lambda d: "killed: it did not leave in time",
    "child_ready": lambda d: "is ready",
    "child_restarting": lambda d: f"restarts in {d['delay_s']:g} s",
    "child_stalled": lambda d: f"stalled: {d['reason']}",
    "child_started": lambda d: f"started, pid {d['pid']}" + (f", life {d['attempt']}" if d["attempt"] > 1 else ""),
    "child_terminated": lambda d: "asked to leave by SIGTERM",
    "evaluation": _evaluation,
    "evaluation_missed": lambda d: f"v{d['policy_version']} was not evaluated: {d['reason']}",
    "reclaimed": lambda d: f"removed what a dead run left: {d['directory']}",
    "resumed": lambda d: f"continues from {d['checkpoint'].rpartition('/')[2]}",
    "run_failing": lambda d: f"fails: {d['error']}",
    "run_ended": lambda d: f"run {d['outcome']}, exit code {d['exit_code']}",
    "run_started": lambda d: f"run started, attempt {d['attempt']}",
    "run_state": lambda d: f"run is {d['state']}",
    "stop_requested": lambda d: f"stop requested by {d['signal']}",
    "training_finished": lambda d: f"training finished after {d['steps']} steps",
}


def describe_event(event: Mapping[str, Any]) -> ShownEvent:
    """A line of events.jsonl in words; unknown kinds, or damaged ones, are shown as they are."""
    kind, process = str(event.get("kind", "?")), str(event.get("process", "supervisor"))
    details = event.get("details")
    details = details if isinstance(details, dict) else {}
    try:
        text = SENTENCES[kind](details)
    except (KeyError, TypeError, ValueError, AttributeError):
        text = " ".join([kind, *(f"{name}={value}" for name, value in details.items())])
    return ShownEvent(
        elapsed_s=float(event.get("elapsed_s", 0.0)),
        kind=printable_line(kind),
        process=printable_line(process),
        text=printable_line(text),
        mood=MOODS.get(kind, "calm"),
    )


def duration(seconds: float | None) -> str:
    """`4:05`, `1:02:03`; `-` when unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

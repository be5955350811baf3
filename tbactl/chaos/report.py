"""What a campaign found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from tbactl.chaos.faults import KINDS
from tbactl.chaos.verdict import Verdict

# Later than this is late.
NOTICE_BOUND_S = 2.0
COLUMNS = ("kind", "faults", "right", "noticed after, s", "recovered after, s", "outcomes")


def fault_line(verdict: Verdict) -> str:
    """One fault in one line."""
    fault = verdict.fault
    line = (
        f"{fault.number:4} {fault.kind:15} {fault.phase:13} {fault.target:10}  noticed {_seconds(verdict.noticed_s)}  "
        f"recovered {_seconds(verdict.recovered_s)}  lost {verdict.num_lost}  exit {verdict.exit_code!s:4}  "
        f"{verdict.outcome}"
    )
    return line if verdict.is_right else f"{line}  WRONG: {'; '.join(verdict.problems)} ({fault.name})"


def summary(verdicts: Sequence[Verdict], *, notice_bound_s: float = NOTICE_BOUND_S) -> dict[str, Any]:
    """The numbers at the end; `notice_bound_s`: what is noticed later is late."""
    return {
        "faults": len(verdicts),
        "wrong": sum(not verdict.is_right for verdict in verdicts),
        "hangs": sum(verdict.is_hang for verdict in verdicts),
        "orphans": sum(verdict.num_orphans for verdict in verdicts),
        "segments_left": sum(verdict.num_segments for verdict in verdicts),
        "groups_acknowledged": sum(verdict.num_acknowledged for verdict in verdicts),
        "groups_lost": sum(verdict.num_lost for verdict in verdicts),
        "groups_damaged": sum(verdict.num_damaged for verdict in verdicts),
        "groups_given_up": sum(verdict.num_given_up for verdict in verdicts),
        "resumed": sum(verdict.is_resumed for verdict in verdicts),
        "notice_bound_s": notice_bound_s,
        "noticed_late": sum((verdict.noticed_s or 0.0) > notice_bound_s for verdict in verdicts),
        "noticed_s": _spread([verdict.noticed_s for verdict in verdicts]),
        "recovered_s": _spread([verdict.recovered_s for verdict in verdicts]),
    }


def summary_lines(verdicts: Sequence[Verdict], *, notice_bound_s: float = NOTICE_BOUND_S) -> Iterator[str]:
    """The same in words."""
    numbers = summary(verdicts, notice_bound_s=notice_bound_s)
    yield (
        f"{numbers['faults']} faults: {numbers['hangs']} hangs, {numbers['orphans']} orphans, "
        f"{numbers['segments_left']} segments left, {numbers['groups_lost']} acknowledged groups lost of "
        f"{numbers['groups_acknowledged']:,} ({numbers['groups_damaged']} damaged and {numbers['groups_given_up']} "
        f"given up, noticed and counted)"
    )
    yield f"{numbers['resumed']} runs that ended were resumed to their last step"
    for name in ("noticed", "recovered"):
        spread = numbers[f"{name}_s"]
        if spread is not None:
            late = f"; {numbers['noticed_late']} later than {notice_bound_s:g} s" if name == "noticed" else ""
            yield f"{name} after {spread['median']:.2f} s (median), {spread['max']:.2f} s at most{late}"
    wrong = numbers["wrong"]
    yield f"{wrong} WRONG" if wrong else "all as expected"


def kind_rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[object, ...]]:
    """A row of `COLUMNS` for each kind."""
    for kind in KINDS:
        own = [verdict for verdict in verdicts if verdict.fault.kind == kind]
        if own:
            outcomes = sorted({verdict.outcome for verdict in own})
            yield (
                kind,
                len(own),
                sum(verdict.is_right for verdict in own),
                _shown([verdict.noticed_s for verdict in own]),
                _shown([verdict.recovered_s for verdict in own]),
                ", ".join(f"{sum(v.outcome == outcome for v in own)} {outcome}" for outcome in outcomes),
            )


def document(verdicts: Sequence[Verdict], *, seed: int, notice_bound_s: float = NOTICE_BOUND_S) -> dict[str, Any]:
    """All of it as JSON."""
    faults = [{**asdict(verdict), "outcome": verdict.outcome, "is_right": verdict.is_right} for verdict in verdicts]
    return {"seed": seed, "summary": summary(verdicts, notice_bound_s=notice_bound_s), "faults": faults}


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"median": median(known), "max": max(known)} if known else None


def _shown(values: Sequence[float | None]) -> str:
    spread = _spread(values)
    return "-" if spread is None else f"{spread['median']:.2f}, at most {spread['max']:.2f}"


def _seconds(value: float | None) -> str:
    return "      -" if value is None else f"{value:5.2f} s"

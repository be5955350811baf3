"""trace.json: spans of several processes in one list that JSON readers take, bounded, and left readable by a kill."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tbactl.config.layout import RunLayout
from tbactl.telemetry import trace as tracing
from tbactl.telemetry.trace import Activities, NoTrace, TraceFile, measured, run_trace
from tbactl.trainer.timing import Stopwatch


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def spans(layout: RunLayout) -> list[dict]:
    return [event for event in json.loads(layout.trace.read_bytes()) if event["ph"] == "X"]


class Notes(NoTrace):
    def __init__(self):
        self.spans = []

    def note(self, name, *, start_s, end_s):
        self.spans.append((name, start_s, end_s))


def test_trace_of_two_processes_is_one_list_in_microseconds(layout):
    with run_trace(layout, is_wanted=True):
        traces = [TraceFile(layout.trace, track=track, name=f"process-{track}") for track in range(2)]
        for number in range(1000):  # several blocks, by turns
            traces[number % 2].note("work", start_s=number, end_s=number + 0.25)
        for trace in traces:
            trace.close()
    found = spans(layout)
    assert sorted(event["ts"] for event in found) == [1e6 * number for number in range(1000)]
    assert all(event["dur"] == 250_000 and event["pid"] == event["ts"] / 1e6 % 2 for event in found)
    names = [
        event["args"]["name"] for event in json.loads(layout.trace.read_bytes()) if event["name"] == "process_name"
    ]
    assert names == ["process-0", "process-1"]


def test_trace_that_nobody_asked_for_is_not_written(layout):
    with run_trace(layout, is_wanted=False), measured(NoTrace(), "work"):
        pass
    assert not layout.trace.exists()


def test_trace_of_a_killed_run_holds_whole_lines(layout):
    layout.trace.write_bytes(b"[\n")
    trace = TraceFile(layout.trace, track=0, name="trainer-0")
    # What is older than some seconds is written without being asked for.
    now_s = time.monotonic()
    trace.note("work", start_s=now_s, end_s=now_s + 10)
    written = layout.trace.read_text().rstrip(",\n")
    assert [event["name"] for event in json.loads(f"{written}]")][-1] == "work"


def test_trace_ends_at_its_bound_and_says_so(layout, monkeypatch, caplog):
    monkeypatch.setattr(tracing, "MAX_BYTES", 100_000)
    with run_trace(layout, is_wanted=True):
        trace = TraceFile(layout.trace, track=0, name="trainer-0")
        for number in range(5000):
            trace.note("work", start_s=number, end_s=number)
        trace.close()
    assert layout.trace.stat().st_size < 100_500
    assert len(spans(layout)) > 100
    assert [record.message for record in caplog.records].count(
        "no more is written to the trace: it would be larger than 0 MiB"
    ) == 1


def test_resumed_run_begins_its_trace_anew(layout):
    for _ in range(2):
        with run_trace(layout, is_wanted=True):
            trace = TraceFile(layout.trace, track=0, name="trainer-0")
            trace.note("work", start_s=0, end_s=1)
            trace.close()
    assert len(spans(layout)) == 1


def test_measured_notes_a_block_that_fails():
    notes = Notes()
    with pytest.raises(ValueError), measured(notes, "work"):
        raise ValueError
    assert [name for name, _, _ in notes.spans] == ["work"]


def test_stopwatch_notes_what_it_adds_up():
    notes = Notes()
    watch = Stopwatch(notes)
    for _ in range(2):
        with watch.measure("wait"):
            time.sleep(0.01)
    assert [name for name, _, _ in notes.spans] == ["wait", "wait"]
    assert watch.take()["wait"] >= sum(end - start for _, start, end in notes.spans) >= 0.02


def test_activities_join_equal_neighbours_and_are_cut_when_they_last():
    notes = Notes()
    activities = Activities(notes)
    for number in range(10):
        activities.note("turns", start_s=0.01 * number, end_s=0.01 * (number + 1))
    activities.note("idle", start_s=0.1, end_s=0.2)
    activities.note("idle", start_s=0.2, end_s=5.0)
    activities.note("idle", start_s=5.0, end_s=5.1)
    activities.end()
    activities.end()
    assert notes.spans == [("turns", 0.0, 0.1), ("idle", 0.1, 0.2), ("idle", 0.2, 5.0), ("idle", 5.0, 5.1)]

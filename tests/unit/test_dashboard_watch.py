import io
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from tbactl.clock import FakeClock
from tbactl.config.layout import RunLayout, ShmLayout
from tbactl.config.run_record import RunRecord
from tbactl.dashboard import outlet
from tbactl.dashboard.live import REFRESH_S, LiveView, PlainView, open_view
from tbactl.dashboard.outlet import Outlet
from tbactl.dashboard.state import page_snapshot
from tbactl.dashboard.watch import watch_run
from tbactl.errors import ConfigError
from tbactl.ipc.control_page import ControlPage, RunState
from tests.support.dashboard_states import EVENTS, make_config, make_record
from tests.support.full_pipe import full_pipe


def terminal(*, width: int = 100, height: int = 30) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, _environ={"TERM": "xterm"})


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunLayout, ControlPage, RunRecord]:
    layout, shm = RunLayout(tmp_path / "run"), ShmLayout(tmp_path / "shm")
    layout.config.mkdir(parents=True)
    shm.root.mkdir()
    layout.resolved_config.write_text(make_config().model_dump_json())
    record = make_record(shm_directory=shm.root)
    layout.identity.write_text(record.model_dump_json())
    layout.events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    line = {"step": 1, "time_s": 2.0, "metrics": {"intake/reward/mean": 0.25}}
    layout.metrics.write_text(json.dumps(line) + "\n")
    page = ControlPage.create(shm.control, num_trainer_ranks=1, num_searchers=2)
    page.supervisor.set(heartbeat_ns=time.monotonic_ns(), run_state=RunState.RUNNING)
    return layout, page, record


def end(layout: RunLayout, page: ControlPage, record: RunRecord) -> None:
    layout.final_page.write_text(page_snapshot(page).to_json())
    page.path.unlink()
    done = record.model_copy(update={"outcome": "finished", "exit_code": 0, "duration_s": 75.0})
    layout.identity.write_text(done.model_dump_json())


class EndingClock(FakeClock):
    """Ends the run when the watcher sleeps for the third time."""

    def __init__(self, *run_parts) -> None:
        super().__init__(start_s=time.monotonic())
        self._parts, self.num_sleeps = run_parts, 0

    def sleep(self, seconds: float) -> None:
        self.num_sleeps += 1
        if self.num_sleeps == 3:
            end(*self._parts)


def test_finished_run_is_replayed_with_its_last_page(run):
    layout, page, record = run
    page.searcher(0).set(loaded_version=17, state=5)
    end(layout, page, record)
    console = terminal()
    assert watch_run(layout.root, plain=False, console=console) == 0
    shown = output(console)
    assert "finished" in shown and "1:15" in shown and "v17" in shown and "checkpoint" in shown


def test_finished_run_is_replayed_as_lines_when_piped(run, capsys: pytest.CaptureFixture[str]):
    end(*run)
    assert watch_run(run[0].root, plain=False, console=Console(file=io.StringIO())) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "t=0 event=run_started process=supervisor attempt=1"
    assert lines[-2:] == ["step=1/60 time_s=2 reward=0.25", "outcome=finished exit_code=0"]


@pytest.mark.parametrize("plain", [True, False])
def test_living_run_is_followed_to_its_end(run, plain: bool, capsys: pytest.CaptureFixture[str]):
    console, clock = terminal(), EndingClock(*run)
    assert watch_run(run[0].root, plain=plain, console=console, clock=clock) == 0
    assert clock.num_sleeps == 3
    shown = capsys.readouterr().out if plain else output(console)
    assert ("tokens_per_s=0" in shown and "outcome=finished" in shown) if plain else ("RUNNING" in shown)


def test_run_whose_supervisor_was_killed_is_called_killed(run, capsys: pytest.CaptureFixture[str]):
    layout, page, _ = run
    page.supervisor.set(heartbeat_ns=time.monotonic_ns() - int(60e9))
    console = terminal()
    assert watch_run(layout.root, plain=False, console=console) == 0
    assert "killed" in output(console)
    page.path.unlink()
    assert watch_run(layout.root, plain=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "outcome=killed exit_code=None"


def test_clock_of_a_killed_run_stands_at_its_last_sign_of_life(run):
    layout, page, record = run
    page.supervisor.set(heartbeat_ns=time.monotonic_ns() - int(60e9))
    started_s = datetime.fromisoformat(record.started_at).timestamp()
    for file in (layout.events, layout.metrics, layout.identity):
        os.utime(file, (started_s + 75, started_s + 75))
    console = terminal()
    assert watch_run(layout.root, plain=False, console=console) == 0
    assert "  1:15 " in output(console)


def test_watching_leaves_on_ctrl_c_without_a_trace(run):
    class Impatient(FakeClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    before = page_snapshot(run[1]).supervisor
    assert watch_run(run[0].root, plain=False, console=terminal(), clock=Impatient(start_s=time.monotonic())) == 0
    assert page_snapshot(run[1]).supervisor == before


def test_something_else_than_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="not a run directory"):
        watch_run(tmp_path, plain=True)


@contextmanager
def open_for(
    run, console: Console, *, plain: bool = False, clock: FakeClock | None = None, stream: TextIO | None = None
) -> Iterator[tuple[PlainView | LiveView, Outlet]]:
    layout, page, record = run
    with (
        Outlet(stream or sys.stdout) as out,
        open_view(
            layout,
            page=page,
            config=make_config(),
            record=record,
            clock=clock or FakeClock(),
            plain=plain,
            out=out,
            console=console,
        ) as view,
    ):
        yield view, out


def test_live_view_draws_at_its_own_pace(run):
    console, clock = terminal(), FakeClock(start_s=100.0)
    with open_for(run, console, clock=clock) as (view, _):
        assert isinstance(view, LiveView)
        view.update()
        length = len(output(console))
        view.update()
        assert len(output(console)) == length
        clock.sleep(REFRESH_S)
        view.update()
        assert len(output(console)) > length
    assert "RUNNING" in output(console)


@pytest.mark.parametrize(
    "console",
    [Console(file=io.StringIO()), terminal(width=60), terminal(height=15)],
    ids=["piped", "narrow", "low"],
)
def test_terminal_that_cannot_show_the_dashboard_gets_lines(run, console: Console, capsys: pytest.CaptureFixture[str]):
    with open_for(run, console) as (view, _):
        assert isinstance(view, PlainView)
        with run[0].metrics.open("a") as file:
            file.write('{"step": 2, "time_s": 3.0, "metrics": {}}\n')
        view.update()
        view.update()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step=") for line in lines) == 1
    assert sum("event=" in line for line in lines) == len(EVENTS)


@pytest.mark.parametrize("plain", [True, False])
def test_reader_of_a_pipe_that_has_gone_fails_the_view_but_not_the_end(run, plain: bool):
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as stream, open_for(run, terminal(), plain=plain, stream=stream) as (view, out):
        view.update()
        out.write("what the dashboard's own console would have written")
        until_s = time.monotonic() + 60.0
        with pytest.raises(BrokenPipeError):
            while time.monotonic() < until_s:
                view.update()


def test_view_that_is_broken_at_the_end_does_not_fail_it(run, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments, **options):
        raise ValueError("cannot draw")

    with open_for(run, terminal()):
        monkeypatch.setattr("tbactl.dashboard.live.draw", broken)


def test_live_view_draws_nothing_that_would_wait_for_its_reader(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outlet, "END_WAIT_S", 0.1)
    console, clock = terminal(), FakeClock(start_s=100.0)
    with (
        full_pipe() as (ours, theirs, _),
        open(theirs, "w", closefd=False) as stream,
        open_for(run, console, clock=clock, stream=stream) as (view, out),
    ):
        view.update()
        length = len(output(console))
        out.write("what the terminal has not taken")
        clock.sleep(REFRESH_S)
        view.update()
        assert len(output(console)) == length
        # Asked first: the thread may still note that all is written when there is nothing more to read.
        while out.is_behind:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 65_536)
        view.update()
        assert len(output(console)) > length

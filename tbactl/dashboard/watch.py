"""`tbactl watch`: looks at a run from outside, live or after its end, and never touches it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rich.console import Console

from tbactl.clock import Clock, SystemClock
from tbactl.config.layout import RunLayout, ShmLayout
from tbactl.config.run_record import RunRecord, read_run_config, read_run_record
from tbactl.dashboard.lines import LineSource
from tbactl.dashboard.live import REFRESH_S, can_draw, draw, open_live
from tbactl.dashboard.state import Gatherer, PageSnapshot, page_snapshot
from tbactl.dashboard.views import dashboard
from tbactl.errors import CheckpointError
from tbactl.ipc.control_page import ControlPage

# A supervisor beats ten times a second.
SILENT_S = 10.0


def watch_run(run_directory: Path, *, plain: bool, console: Console | None = None, clock: Clock | None = None) -> int:
    """Show a run until it ends, or at once what it came to. Ctrl-C leaves; the run does not notice.

    Args:
        run_directory: what `tbactl run` made.
        plain: lines instead of the dashboard.
        console: None: standard output.
        clock: None: the system's.

    Returns:
        0.

    Raises:
        ConfigError: it is not a run directory, or its record or configuration is damaged.
    """
    console, clock = console or Console(), clock or SystemClock()
    watched = WatchedRun(run_directory, clock=clock)
    with suppress(KeyboardInterrupt):
        if plain or not can_draw(console):
            _print_lines(watched, clock=clock)
        else:
            _draw_frames(watched, console=console, clock=clock)
    return 0


class WatchedRun:
    """A run seen from outside: its record, its page while there is one, its files."""

    def __init__(self, run_directory: Path, *, clock: Clock) -> None:
        self.layout = RunLayout(run_directory)
        self.record = read_run_record(run_directory)
        self.config = read_run_config(run_directory)
        self._clock = clock
        self.page = _open_page(self.record)

    @property
    def is_alive(self) -> bool:
        """Whether somebody still runs it: the supervisor writes its page, or is about to make it."""
        if self.record.outcome != "running" or self.page is None:
            return False
        return self._clock.monotonic_s() - self.page.supervisor.get("heartbeat_ns") / 1e9 < SILENT_S

    def refresh(self) -> None:
        """Read the record again."""
        self.record = read_run_record(self.layout.root)

    def snapshot(self) -> PageSnapshot | None:
        """The page now, or as it was when the run ended; None for a run that was killed."""
        if self.is_alive and self.page is not None:
            return page_snapshot(self.page)
        with suppress(FileNotFoundError, ValueError, KeyError):
            return PageSnapshot.from_json(self.layout.final_page.read_text(encoding="utf-8"))
        return None

    def elapsed_s(self) -> float:
        """Seconds from the supervisor's start until now, or to the end; of a killed run, to its last sign of life."""
        if self.record.duration_s is not None:
            return self.record.duration_s
        until_s = self._clock.wall_s() if self.is_alive else self._last_written_s()
        return max(0.0, until_s - datetime.fromisoformat(self.record.started_at).timestamp())

    def _last_written_s(self) -> float:
        files = (self.layout.events, self.layout.metrics, self.layout.identity)
        return max(file.stat().st_mtime for file in files if file.exists())


def _open_page(record: RunRecord) -> ControlPage | None:
    try:
        return ControlPage.open(ShmLayout(record.shm_directory).control, read_only=True)
    except (FileNotFoundError, CheckpointError):
        return None


def _print_lines(watched: WatchedRun, *, clock: Clock) -> None:
    source = LineSource(watched.layout, config=watched.config)
    while True:
        is_alive = watched.is_alive
        for line in source.new_lines(watched.page if is_alive else None):
            print(line, flush=True)
        if not is_alive:
            break
        clock.sleep(REFRESH_S)
        watched.refresh()
    outcome = watched.record.outcome
    print(f"outcome={'killed' if outcome == 'running' else outcome} exit_code={watched.record.exit_code}", flush=True)


def _draw_frames(watched: WatchedRun, *, console: Console, clock: Clock) -> None:
    gatherer = Gatherer(watched.layout, config=watched.config)

    if watched.is_alive:
        with open_live(console) as live:
            while watched.is_alive:
                snapshot, elapsed_s = watched.snapshot(), watched.elapsed_s()
                draw(live, gatherer.gather(watched.record, page=snapshot, elapsed_s=elapsed_s))
                clock.sleep(REFRESH_S)
                watched.refresh()
    state = gatherer.gather(watched.record, page=watched.snapshot(), elapsed_s=watched.elapsed_s())
    console.print(dashboard(state, width=console.width, height=console.height - 1))

"""Shows a run while its supervisor's loop, which calls `update`, watches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from tbactl.clock import Clock
from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord
from tbactl.config.sections import RunConfig
from tbactl.dashboard.lines import LineSource
from tbactl.dashboard.state import DashboardState, Gatherer, page_snapshot
from tbactl.dashboard.views import MIN_HEIGHT, MIN_WIDTH, dashboard
from tbactl.ipc.control_page import ControlPage

REFRESH_S = 0.25


class PlainView:
    """Prints lines as they come."""

    def __init__(self, source: LineSource, *, page: ControlPage, clock: Clock) -> None:
        self._source = source
        self._page = page
        self._clock = clock
        self._next_s = 0.0

    def update(self) -> None:
        """Print what is new, at most every `REFRESH_S`."""
        if self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + REFRESH_S
            self.finish()

    def finish(self) -> None:
        """Print what is new now."""
        for line in self._source.new_lines(self._page):
            print(line, flush=True)


class LiveView:
    """Redraws the dashboard in place. The last frame stays on the terminal."""

    def __init__(
        self, live: Live, gatherer: Gatherer, *, page: ControlPage, record: RunRecord, started_s: float, clock: Clock
    ) -> None:
        self._live = live
        self._gatherer = gatherer
        self._page = page
        self._record = record
        self._started_s = started_s
        self._clock = clock
        self._next_s = 0.0

    def update(self) -> None:
        """Redraw, at most every `REFRESH_S`."""
        if self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + REFRESH_S
            self.finish()

    def finish(self) -> None:
        """Redraw now."""
        elapsed_s = self._clock.monotonic_s() - self._started_s
        draw(self._live, self._gatherer.gather(self._record, page=page_snapshot(self._page), elapsed_s=elapsed_s))


@contextmanager
def open_view(
    layout: RunLayout,
    *,
    page: ControlPage,
    config: RunConfig,
    record: RunRecord,
    clock: Clock,
    plain: bool,
    console: Console | None = None,
) -> Iterator[PlainView | LiveView]:
    """The live dashboard where the terminal can show it, else plain lines."""
    console = console or Console()
    if plain or not can_draw(console):
        view = PlainView(LineSource(layout, config=config, attempt=record.attempt), page=page, clock=clock)
        yield view
        _finish(view)
        return
    with open_live(console) as live:
        view = LiveView(
            live,
            Gatherer(layout, config=config),
            page=page,
            record=record,
            started_s=clock.monotonic_s(),
            clock=clock,
        )
        yield view
        _finish(view)


def _finish(view: PlainView | LiveView) -> None:
    # The reader of a pipe may be gone; that is no reason for a run to fail at its end.
    with suppress(OSError):
        view.finish()


def can_draw(console: Console) -> bool:
    """Whether a console is a terminal that is large enough and knows the characters."""
    is_capable = console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")
    return is_capable and console.width >= MIN_WIDTH and console.height > MIN_HEIGHT


def open_live(console: Console) -> Live:
    """A region that is redrawn only when asked; no thread of its own."""
    return Live(console=console, auto_refresh=False, vertical_overflow="crop")


def draw(live: Live, state: DashboardState) -> None:
    """Draw a state at the console's present size. One line stays free: a full screen would scroll."""
    console = live.console
    height = max(MIN_HEIGHT, console.height - 1)
    live.update(dashboard(state, width=max(MIN_WIDTH, console.width), height=height), refresh=True)

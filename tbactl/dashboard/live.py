"""Shows a run while its supervisor's loop, which calls `update`, watches it.

The loop draws, but does not write: the outlet's thread does. Without it a reader that stalls would stop the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from rich.console import Console
from rich.live import Live

from tbactl.clock import Clock
from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord
from tbactl.config.sections import RunConfig
from tbactl.dashboard.lines import LineSource
from tbactl.dashboard.outlet import Outlet
from tbactl.dashboard.state import DashboardState, Gatherer, page_snapshot
from tbactl.dashboard.views import MIN_HEIGHT, MIN_WIDTH, dashboard
from tbactl.ipc.control_page import ControlPage

REFRESH_S = 0.25


class PlainView:
    """Prints lines as they come."""

    def __init__(self, source: LineSource, *, out: Outlet, page: ControlPage, clock: Clock) -> None:
        self._source = source
        self._out = out
        self._page = page
        self._clock = clock
        self._next_s = 0.0

    def update(self) -> None:
        """Print what is new, at most every `REFRESH_S`.

        Raises:
            OSError: nobody reads it any more.
        """
        _check_reader(self._out)
        if self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + REFRESH_S
            self.finish()

    def finish(self) -> None:
        """Print what is new now."""
        for line in self._source.new_lines(self._page):
            self._out.write_line(line)


class LiveView:
    """Redraws the dashboard in place. The last frame stays on the terminal."""

    def __init__(
        self,
        live: Live,
        gatherer: Gatherer,
        *,
        out: Outlet,
        page: ControlPage,
        record: RunRecord,
        started_s: float,
        clock: Clock,
    ) -> None:
        self._live = live
        self._out = out
        self._gatherer = gatherer
        self._page = page
        self._record = record
        self._started_s = started_s
        self._clock = clock
        self._next_s = 0.0

    def update(self) -> None:
        """Redraw, at most every `REFRESH_S`, and not before the last picture has reached the terminal.

        Raises:
            OSError: the terminal is gone.
        """
        _check_reader(self._out)
        if self._clock.monotonic_s() >= self._next_s and not self._out.is_behind:
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
    out: Outlet,
    console: Console | None = None,
) -> Iterator[PlainView | LiveView]:
    """The live dashboard where the terminal can show it, else plain lines.

    Args:
        layout: of the run.
        page: of the run.
        config: of the run.
        record: of the run.
        clock: for the pace.
        plain: lines, whatever the terminal can show.
        out: what writes. Its owner closes it, after what else it prints.
        console: what draws; None: one that writes to `out`.
    """
    console = console or Console(file=cast("TextIO", out))
    if plain or not can_draw(console):
        source = LineSource(layout, config=config, attempt=record.attempt)
        view = PlainView(source, out=out, page=page, clock=clock)
        yield view
        _finish(view)
        return
    live = open_live(console)
    view = LiveView(
        live,
        Gatherer(layout, config=config),
        out=out,
        page=page,
        record=record,
        started_s=clock.monotonic_s(),
        clock=clock,
    )
    live.start()
    try:
        yield view
        _finish(view)
    finally:
        with suppress(Exception):  # as below: it draws once more
            live.stop()


def _check_reader(out: Outlet) -> None:
    if out.error is not None:
        raise out.error


def _finish(view: PlainView | LiveView) -> None:
    with suppress(Exception):  # what shows a run must never change how it ends
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

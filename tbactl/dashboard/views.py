"""The whole dashboard for a terminal of a given size. Pure: a state in, a renderable out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from tbactl.dashboard import curves, panels
from tbactl.dashboard.state import DashboardState

MIN_WIDTH, MIN_HEIGHT = 76, 23
MAX_WIDTH, MAX_HEIGHT = 180, 44
WIDE = 120


def dashboard(state: DashboardState, *, width: int, height: int) -> RenderableType:
    """All panels in at most `width` columns and exactly min(height, MAX_HEIGHT) lines.

    Args:
        state: what to show.
        width: columns, at least MIN_WIDTH.
        height: lines, at least MIN_HEIGHT.
    """
    width, height = min(width, MAX_WIDTH), min(height, MAX_HEIGHT)
    # Header 1; the least for the three rows of panels is 9 + 7 + 6; what is left goes to curves, then samples.
    extra = height - MIN_HEIGHT
    num_more_searchers = max(0, state.config.searchers.num_searchers - 4)
    middle = 7 + min(num_more_searchers, extra // 3)
    extra -= middle - 7
    top = 9 + (extra + 1) // 2
    bottom = 6 + extra // 2
    rows = [_top(state, width=width, height=top), *_lower(state, width=width, middle=middle, bottom=bottom)]
    return Group(panels.header(state, width=width), *rows)


def _top(state: DashboardState, *, width: int, height: int) -> RenderableType:
    if width < WIDE:
        left = width - 34
        return _side_by_side(
            curves.reward_panel(state, width=left, height=height, with_length=True),
            panels.trainer_panel(state, width=34, height=height),
        )
    middle = (width - 38) * 2 // 5
    return _side_by_side(
        curves.reward_panel(state, width=width - 38 - middle, height=height, with_length=False),
        curves.length_panel(state, width=middle, height=height),
        panels.trainer_panel(state, width=38, height=height),
    )


def _lower(state: DashboardState, *, width: int, middle: int, bottom: int) -> list[RenderableType]:
    left = width - 34 if width < WIDE else width * 3 // 5
    return [
        _side_by_side(
            panels.searchers_panel(state, width=left, height=middle),
            panels.buffer_panel(state, width=width - left, height=middle),
        ),
        _side_by_side(
            panels.sample_panel(state, width=left, height=bottom),
            panels.events_panel(state, width=width - left, height=bottom),
        ),
    ]


def _side_by_side(*parts: RenderableType) -> RenderableType:
    grid = Table.grid()
    for _ in parts:
        grid.add_column()
    grid.add_row(*parts)
    return grid

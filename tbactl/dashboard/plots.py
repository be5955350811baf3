"""Curves and bars drawn with characters. Pure: numbers in, strings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
# A braille cell is 2 dots wide and 4 high; these are the bits of its dots, by row and column.
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True, slots=True)
class Range:
    """An axis. `low` < `high`."""

    low: float
    high: float

    def fraction(self, value: float) -> float:
        """Where a value lies, 0 at `low`, 1 at `high`; cut off outside."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def fitting_range(values: Sequence[float]) -> Range:
    """A range with a little room around the values; about (0, 1) where there are none or all are equal."""
    if not values:
        return Range(0.0, 1.0)
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return Range(low - room, high + room)


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Bars of eight heights, the smallest value lowest; more values than columns are averaged, fewer not stretched."""
    if not values:
        return ""
    columns = binned(values, width)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    return "".join(BLOCKS[1 + round((len(BLOCKS) - 2) * (value - low) / span)] for value in columns)


def histogram(counts: Sequence[float]) -> str:
    """One bar for each count, the largest full height; a count above zero is always visible."""
    largest = max(counts, default=0.0)
    if largest <= 0:
        return "\u00b7" * len(counts)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[max(1, round(top * count / largest))] if count > 0 else "\u00b7" for count in counts)


def gauge(fraction: float, *, width: int) -> str:
    """A horizontal bar, filled from the left."""
    full = round(width * min(1.0, max(0.0, fraction)))
    return "\u2501" * full + "\u2500" * (width - full)


def binned(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbouring values."""
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def curve(points: Sequence[Point], *, width: int, height: int, x: Range, y: Range) -> list[str]:
    """A connected curve as `height` strings of `width` braille characters, top line first.

    Args:
        points: (x, y), by rising x.
        width: characters.
        height: lines.
        x: range of the horizontal axis.
        y: range of the vertical axis; values outside are drawn at its edge.
    """
    cells = [[0] * width for _ in range(height)]
    previous: tuple[int, int] | None = None
    for column, row in _dots(points, width=2 * width, height=4 * height, x=x, y=y):
        for dot_column, dot_row in _line(previous or (column, row), (column, row)):
            cells[dot_row // 4][dot_column // 2] |= DOTS[dot_row % 4][dot_column % 2]
        previous = (column, row)
    return ["".join(chr(BRAILLE + bits) if bits else " " for bits in line) for line in cells]


def cell(point: Point, *, width: int, height: int, x: Range, y: Range) -> tuple[int, int]:
    """Line and column of the character at a point of the same plot."""
    return (
        min(height - 1, int((1 - y.fraction(point[1])) * height)),
        min(width - 1, int(x.fraction(point[0]) * width)),
    )


def _dots(points: Sequence[Point], *, width: int, height: int, x: Range, y: Range) -> list[tuple[int, int]]:
    """One dot for each column that has points: at the mean of their values."""
    columns: dict[int, list[float]] = {}
    for horizontal, vertical in points:
        columns.setdefault(min(width - 1, int(x.fraction(horizontal) * width)), []).append(vertical)
    return [
        (column, min(height - 1, int((1 - y.fraction(sum(values) / len(values))) * height)))
        for column, values in sorted(columns.items())
    ]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * i / steps), round(start[1] + (end[1] - start[1]) * i / steps))
        for i in range(steps + 1)
    ]

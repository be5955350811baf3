"""What the frontiers of tasks have in common: the table, and what to say where nothing can be drawn."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl.evaluation.hooks import FrontierPoint

TABLE_FILE = "frontier.csv"
PICTURE_FILE = "frontier.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A point of a paper, as the table shows it beside the measured ones."""

    source: str
    """Which paper, and why the values do not compare."""
    run: str
    """Which of its settings."""
    metrics: Mapping[str, float]


def write_table(points: Sequence[FrontierPoint], *, published: Iterable[PublishedRow], file: Path) -> None:
    """Write all metrics of all points with their intervals as CSV, then the published ones."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(_rows(points, published))


def require_matplotlib(table: Path) -> None:
    """Refuse to draw where the library is not installed.

    Args:
        table: was written all the same, and is named.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the frontier is drawn with matplotlib, which is not installed: `pip install matplotlib`, then the same "
            f"command again, which evaluates nothing twice; the numbers are in {table}."
        ) from error


def _rows(points: Sequence[FrontierPoint], published: Iterable[PublishedRow]) -> Iterator[list[object]]:
    names = list(dict.fromkeys(name for point in points for name in point.result.metrics))
    columns = [column for name in names for column in (name, f"{name}_low", f"{name}_high")]
    yield ["source", "run", "step", "num_prompts", *columns]
    for point in points:
        result = point.result
        values: list[object] = []
        for name in names:
            values += [result.metrics.get(name, ""), *result.intervals.get(name, ("", ""))]
        yield ["measured", point.run, point.step, result.num_prompts, *values]
    for row in published:
        yield [row.source, row.run, "", "", *(row.metrics.get(name, "") for name in columns)]

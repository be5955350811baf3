"""The metric names that docs/metrics.md explains."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `([a-z0-9_]+/[a-z0-9_]+/[a-z0-9_]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def documented_metrics() -> set[str]:
    """Names in the tables; each row must have a unit and a meaning."""
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names)), "a metric is explained twice"
    return set(names)

"""The dashboard of a run as an SVG picture: `python benchmarks/dashboard_picture.py RUN docs/images/dashboard.svg`.

Shows what `tbactl watch RUN` draws, live if the run lives, else its last frame.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console

from tbactl.clock import SystemClock
from tbactl.dashboard.state import Gatherer
from tbactl.dashboard.views import dashboard
from tbactl.dashboard.watch import WatchedRun


def main() -> None:
    """Draw one frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=118)
    parser.add_argument("--height", type=int, default=32)
    arguments = parser.parse_args()
    watched = WatchedRun(arguments.run.resolve(), clock=SystemClock())
    state = Gatherer(watched.layout, config=watched.config).gather(
        watched.record, page=watched.snapshot(), elapsed_s=watched.elapsed_s()
    )
    console = Console(
        record=True, width=arguments.width, height=arguments.height, file=io.StringIO(), force_terminal=True
    )
    console.print(dashboard(state, width=arguments.width, height=arguments.height))
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(arguments.picture), title=f"tbactl run {watched.record.recipe}")


if __name__ == "__main__":
    main()

"""The picture of `soak.py`: what each process holds over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

from benchmarks.soak_sampling import Sample
from benchmarks.soak_verdict import after_warm_up

PANELS = {
    "rss": "resident memory, MiB",
    "descriptors": "file descriptors",
    "threads": "threads",
    "shared": "shared memory, MiB",
    "files": "files that must not grow, MiB",
    "history": "files that grow by design, MiB",
}
# Okabe and Ito's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(samples: Sequence[Sample], *, file: Path) -> None:
    """Draw one panel for each kind of quantity; the warm-up is grey."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    canvas, grid = plt.subplots(2, 3, figsize=(11, 5.6), sharex=True, layout="constrained")
    minutes = [sample.seconds / 60 for sample in samples]
    for axes, (kind, title) in zip(grid.flat, PANELS.items(), strict=True):
        names = [name for name in samples[0].values if name.split()[0] == kind]
        for name, colour in zip(names, COLOURS, strict=False):
            axes.plot(minutes, [s.values[name] for s in samples], color=colour, lw=1.4, label=name.partition(" ")[2])
        axes.axvspan(0, after_warm_up(samples)[0].seconds / 60, color="0.92", zorder=0)
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, minutes[-1])
    grid[0, 0].legend(frameon=False, fontsize=8)
    for axes in grid[1]:
        axes.set_xlabel("minutes of training")
    canvas.savefig(file, dpi=150, metadata={"Software": None})
    plt.close(canvas)

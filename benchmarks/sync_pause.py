"""The weight-sync part of benchmarks/ipc.py: trainer and searchers as workers, policies of several sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from benchmarks.measuring import Worker, console, ratios, shown, spread, table_of
from tbactl.config.layout import SHM_ROOT

SEARCHERS = (1, 2, 3, 4)
# Hidden size, layers, heads, heads of keys, size between, vocabulary; the last is SmolLM2-135M's.
SHAPES = {
    "3M": (256, 4, 4, 2, 768, 1024),
    "30M": (512, 6, 8, 4, 1536, 16384),
    "134M": (576, 30, 9, 3, 1536, 49152),
}


def measure_syncs(*, is_short: bool) -> list[dict[str, Any]]:
    """For each policy, the pauses with 1 to 4 searchers, in turns; the first sync of each number warms up."""
    repetitions = 3 if is_short else 7
    names = list(SHAPES)[: 2 if is_short else len(SHAPES)]
    return [_measure(name, repetitions=repetitions) for name in names]


def _measure(name: str, *, repetitions: int) -> dict[str, Any]:
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=SHM_ROOT))
        shape = ",".join(map(str, SHAPES[name]))
        trainer = stack.enter_context(Worker("benchmarks.sync_worker", ["trainer", scratch, shape], threads=1))
        size_bytes = trainer.ask(version=1)["size_bytes"]
        searchers = [
            stack.enter_context(Worker("benchmarks.sync_worker", ["searcher", scratch, shape], threads=1))
            for _ in range(max(SEARCHERS))
        ]
        pauses: dict[int, list[float]] = {count: [] for count in SEARCHERS}
        loads: dict[int, list[float]] = {count: [] for count in SEARCHERS}
        version = 1
        for number in range(repetitions + 1):
            console.print(f"weight sync, {name}: {'warming up' if not number else f'{number} of {repetitions}'} ...")
            for count in SEARCHERS:
                version += 1
                pause, load = _sync(trainer, searchers[:count], version=version)
                if number:
                    pauses[count].append(pause)
                    loads[count].append(load)
    return {
        "policy": name,
        "size_bytes": size_bytes,
        "pause_s": {str(count): spread(values) for count, values in pauses.items()},
        "load_s": {str(count): spread(values) for count, values in loads.items()},
        "pause_4_over_1": ratios(pauses[4], pauses[1]),
    }


def _sync(trainer: Worker, searchers: Sequence[Worker], *, version: int) -> tuple[float, float]:
    """The trainer's seconds, and those of the slowest searcher; these wait for the version when it is published."""
    with ThreadPoolExecutor(len(searchers)) as pool:
        waiting = [pool.submit(searcher.ask, version=version) for searcher in searchers]
        pause = trainer.ask(version=version)["seconds"]
        return pause, max(future.result()["seconds"] for future in waiting)


def pause_share(steps: Sequence[Mapping[str, float]], *, period: int) -> float:
    """Share of the training time that went into publishing, over whole periods, without the first one: it warms up."""
    warm = steps[period : len(steps) - len(steps) % period]
    return sum(step["publish_s"] for step in warm) / sum(step["step_s"] for step in warm)


def sync_table(syncs: Sequence[Mapping[str, Any]]) -> Any:
    """Milliseconds."""
    rows = [
        (
            f"{row['policy']}, {row['size_bytes'] / 1e6:,.0f} MB",
            count,
            *(
                shown({key: 1e3 * value for key, value in row[part][count].items()}, ".1f")
                for part in ("pause_s", "load_s")
            ),
        )
        for row in syncs
        for count in row["pause_s"]
    ]
    return table_of("weight sync, ms", ("policy", "searchers", "trainer's pause", "slowest searcher"), rows)

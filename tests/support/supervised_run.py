"""A run in a process of its own, looked at through its files, and the check that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tbactl.config.layout import RunLayout
from tbactl.config.run_record import RunRecord, read_run_record
from tbactl.config.sections import RunConfig
from tbactl.ipc.control_page import ControlPage, Slot
from tbactl.supervision.identity import processes_with, start_ticks
from tbactl.supervision.placement import RUN_VARIABLE
from tbactl.supervision.supervisor import POLL_S

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("supervise.py")
# Waits end as soon as what they wait for is there. These bounds are for a machine on which others take the cores.
WAIT_S, END_S = 120.0, 150.0
# Two seconds of a supervisor that gets a core whenever it wants one.
TURNS_OF_TWO_SECONDS = round(2.0 / POLL_S)
# Two real searcher processes with the fake engine.
FAKE_SEARCHERS: dict[str, Any] = {
    "num_searchers": 2, "engine": "fake", "engine_options": {"step_seconds": 0.002}, "num_completions": 4,
    "max_prompt_tokens": 32, "max_new_tokens": 8, "max_concurrent_groups": 4, "ring_capacity_bytes": 2**20,
    "temperature": 1.0,
}  # fmt: skip


class SupervisedRun:
    def __init__(
        self,
        tmp_path: Path,
        *,
        stand_ins: bool = True,
        resume: Path | None = None,
        stdout: int | None = None,
        **sections: Any,
    ) -> None:
        self.tmp_path = tmp_path
        self.shm_root = tmp_path / "shm"
        self.shm_root.mkdir(exist_ok=True)
        config_path = tmp_path / "config.json"
        config_path.write_text(stand_in_config(tmp_path, **sections).model_dump_json())
        argv = [sys.executable, str(SCRIPT), str(config_path), str(self.shm_root)]
        argv += ["--stand-ins"] if stand_ins else []
        argv += ["--resume", str(resume)] if resume else []
        # One for each: an earlier supervisor of the same directory may still write.
        self.output_path = tmp_path / f"output-{len(list(tmp_path.glob('output-*.txt')))}.txt"
        self.output = self.output_path.open("w+")
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            stdout=self.output if stdout is None else stdout,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def layout(self) -> RunLayout:
        return RunLayout((self.tmp_path / "runs" / "latest").resolve())

    @property
    def record(self) -> RunRecord:
        return read_run_record(self.layout.root)

    @property
    def text(self) -> str:
        return self.output_path.read_text()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        if not self.layout.events.exists():
            return []
        # The last line may still be being written.
        lines = [line for line in self.layout.events.read_text().splitlines(keepends=True) if line.endswith("\n")]
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind is None or event["kind"] == kind]

    def pid(self, name: str) -> int:
        return [e["details"]["pid"] for e in self.events("child_started") if e["process"] == name][-1]

    def page(self) -> ControlPage:
        return ControlPage.open(self.record.shm_directory / "control", read_only=True)

    def wait_for(self, condition: Callable[[], Any], *, timeout_s: float = WAIT_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"nothing after {timeout_s} s; output:\n{self.text}"
            time.sleep(0.02)
        return value

    def wait_for_event(self, kind: str, *, timeout_s: float = WAIT_S, **details: Any) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [e for e in self.events(kind) if details.items() <= e["details"].items()]

        return self.wait_for(found, timeout_s=timeout_s)[0]

    def wait_until_training(self) -> None:
        self.wait_for_event("run_state", state="RUNNING")
        self.wait_for(lambda: self.page().trainer().get("policy_version") > 1)

    def kill_and_see(self, name: str) -> dict[str, Any]:
        """Kill a child. Its event, which is there when the supervisor has turned as often as in two seconds.

        From when the kernel has ended the process: that, too, may have to wait for a core.
        """
        supervisor, pid = self.page().supervisor, self.pid(name)
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: start_ticks(pid) is None)

        def died() -> list[dict[str, Any]]:
            return [event for event in self.events("child_died") if event["details"]["pid"] == pid]

        return self.wait_turns(died, supervisor=supervisor, limit=TURNS_OF_TWO_SECONDS)[0]

    def wait_turns(self, condition: Callable[[], Any], *, supervisor: Slot, limit: int) -> Any:
        """What is true before the supervisor has turned more often than that from now on.

        Turns are counted, not seconds: on a busy machine it may get no core for longer.
        """
        first = supervisor.get("progress_count")

        def look() -> Any:
            num_turns = supervisor.get("progress_count") - first  # before the look: what comes later is not held late
            value = condition()
            assert value or num_turns <= limit, f"nothing in {num_turns} turns; output:\n{self.text}"
            return value

        return self.wait_for(look)

    def go_on(self) -> None:
        """Let go a trainer that is held."""
        (self.layout.root / "go_on").touch()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, *, timeout_s: float = END_S) -> int:
        return self.process.wait(timeout=timeout_s)

    def assert_nothing_left(self) -> None:
        assert list(processes_with(RUN_VARIABLE, str(self.record.shm_directory))) == []
        assert list(self.shm_root.iterdir()) == []


def stand_in_config(tmp_path: Path, **sections: Any) -> RunConfig:
    """Two searchers and a trainer of 40 steps in about 1 s; sections and settings are laid over it, key by key."""
    values: dict[str, Any] = {
        "name": "t",
        "runs_dir": str(tmp_path / "runs"),
        "task": {"kind": "fake"},
        "policy": {"path": str(tmp_path)},
        "searchers": {"num_searchers": 2, "engine": "fake", "ring_capacity_bytes": 65_536},
        "trainer": {"kind": "fake", "max_steps": 40},
        "supervision": {"restart_backoff_s": 0.1, "stop_grace_s": 120.0},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return RunConfig.model_validate(values)


@contextmanager
def supervised_run(tmp_path: Path, **options: Any) -> Iterator[SupervisedRun]:
    run = SupervisedRun(tmp_path, **options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(timeout=60)
        run.output.close()

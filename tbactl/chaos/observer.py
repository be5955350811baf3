"""One attempt of a run, seen from outside through its files and its shared memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbactl.chaos.books import RingGauge
from tbactl.chaos.expectation import Expected
from tbactl.chaos.faults import NUM_SEARCHERS, Fault
from tbactl.chaos.phase import is_in_phase, slot_of
from tbactl.chaos.settings import num_steps
from tbactl.config.layout import RunLayout, ShmLayout
from tbactl.config.run_record import read_run_record
from tbactl.dashboard.tail import JsonlTail
from tbactl.errors import TbactlError
from tbactl.ipc.control_page import ControlPage, ProcessState

DEATHS = ("child_died", "child_stalled", "child_terminated", "child_killed", "run_ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event, and when it was read."""

    time_s: float
    kind: str
    process: str
    details: Mapping[str, Any]


class Observer:
    """Reads, never writes. Mappings of the page and the rings outlive the run."""

    def __init__(self, runs: Path, *, attempt: int) -> None:
        self._runs = runs
        self._attempt = attempt
        self._tail: JsonlTail | None = None
        self.root: Path | None = None
        self.shm: Path | None = None
        self.page: ControlPage | None = None
        self.rings: list[RingGauge] = []
        self.events: list[Seen] = []

    def look(self) -> None:
        """Find what is there now."""
        if self.page is None:
            self._attach()
        if self._tail is not None:
            now_s = time.monotonic()
            for line in self._tail.read_new():
                seen = Seen(time_s=now_s, kind=line["kind"], process=line["process"], details=line["details"])
                self.events.append(seen)

    def pid(self, process: str) -> int | None:
        """Of the last life of a child."""
        started = [e.details["pid"] for e in self.events if e.kind == "child_started" and e.process == process]
        return started[-1] if started else None

    def is_in(self, fault: Fault) -> bool:
        """Whether the run is where the fault is to strike."""
        if self.page is None or (fault.role != "supervisor" and self.pid(fault.target) is None):
            return False
        return is_in_phase(self.page, fault)

    def state_of(self, process: str) -> int:
        """ProcessState of a child."""
        assert self.page is not None
        return slot_of(self.page, process).get("state")

    def noticed(self, fault: Fault, expectation: Expected, *, struck_s: float) -> bool:
        """Whether the run shows that it has noticed the fault."""
        assert self.page is not None
        searchers = [self.page.searcher(i) for i in range(NUM_SEARCHERS)]
        match expectation.sign:
            case "death":
                is_own = {fault.target, "supervisor"}
                return any(
                    e.time_s > struck_s and e.kind in DEATHS and (e.process in is_own or fault.role == "supervisor")
                    for e in self.events
                )
            case "failure-count":
                return any(slot.get("num_failed") for slot in searchers)
            case "alarm":
                return any(slot.get("alarm_kind") == expectation.about for slot in searchers)
            case "damage-count":
                return any(ring.num_damaged for ring in self.rings)
            case "nothing":
                return False

    def has_recovered(self, fault: Fault, *, version: int, dead: int | None) -> bool:
        """Whether the target works again, in a new process if it died, and the trainer has got on beyond a version."""
        is_new = fault.role == "supervisor" or self.pid(fault.target) != dead
        is_up = is_new and (fault.role == "supervisor" or self.state_of(fault.target) == ProcessState.RUNNING)
        return is_up and (self.version > version or self.version == num_steps(fault))

    @property
    def version(self) -> int:
        """Optimizer steps done."""
        return 0 if self.page is None else self.page.trainer().get("policy_version")

    @property
    def layout(self) -> RunLayout:
        """Of the run directory."""
        assert self.root is not None
        return RunLayout(self.root)

    def _attach(self) -> None:
        latest = self._runs / "latest"
        if self.root is None and latest.exists():
            self.root = latest.resolve()
            self._tail = JsonlTail(RunLayout(self.root).events)
        if self.root is None:
            return
        try:
            record = read_run_record(self.root)
            if record.attempt != self._attempt:
                return
            self.shm = record.shm_directory
            page = ControlPage.open(self.shm / "control", read_only=True)
            self.rings = [RingGauge(ShmLayout(self.shm).ring(i)) for i in range(NUM_SEARCHERS)]
            self.page = page
        except (OSError, ValueError, TbactlError):
            return  # it is being made, or gone

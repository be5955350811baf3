"""One case: a small run with one fault, and what became of it."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from pathlib import Path

import msgspec

from tbactl.chaos.attempt import Attempt
from tbactl.chaos.books import RingGauge, balance
from tbactl.chaos.expectation import FINISHED, KILLED, Expected, expected
from tbactl.chaos.faults import FROM_OUTSIDE, Fault
from tbactl.chaos.observer import Observer
from tbactl.chaos.phase import may_drain
from tbactl.chaos.settings import HEARTBEAT_S, CaseLayout, case_config, num_steps
from tbactl.chaos.small_disk import BALLAST, empty, fill, small_disk
from tbactl.chaos.strikes import strike
from tbactl.chaos.verdict import Verdict
from tbactl.config.layout import RunLayout
from tbactl.supervision.reclaim import reclaim


class CancelledError(Exception):
    """The campaign was interrupted."""


class Case:
    """Runs one fault. Everything it starts or makes is gone afterwards, but the directory of a case that went wrong.

    Args:
        fault: what to do.
        directory: of the campaign; the case makes its own in it.
        shm_root: where its shared memory is made.
        bound_s: longest time for a run, or its resume; longer is a hang.
        may_mount: small file systems can be mounted, and really filled.
        cancelled: set when the campaign is given up.
        keeps: keep the directory of a case that went right, too.
        heartbeat_s: limit by which a stopped process is noticed.
        notice_bound_s: a fault that is noticed later is a problem; None: it is not.
    """

    def __init__(
        self, fault: Fault, *, directory: Path, shm_root: Path, bound_s: float, may_mount: bool,
        cancelled: threading.Event, keeps: bool = False, heartbeat_s: float = HEARTBEAT_S,
        notice_bound_s: float | None = None,
    ) -> None:  # fmt: skip
        self._fault = fault
        self._expected: Expected = expected(fault)
        self._layout = CaseLayout(directory / fault.name)
        self._shm_root = shm_root / fault.name
        self._bound_s = bound_s
        self._may_mount = may_mount
        self._cancelled = cancelled
        self._keeps = keeps
        self._heartbeat_s = heartbeat_s
        self._notice_bound_s = notice_bound_s
        self._verdict = Verdict(fault=fault)
        self._struck_s: float | None = None
        self._is_armed = False
        # At the strike: optimizer steps done, and the target's process.
        self._version = 0
        self._pid: int | None = None

    def run(self) -> Verdict:
        """Run to the end.

        Raises:
            CancelledError: the campaign was given up.
        """
        started_s = time.monotonic()
        self._prepare()
        try:
            with contextlib.ExitStack() as stack:
                full = self._small_disk()
                if full is not None and not stack.enter_context(small_disk(full)):
                    full = None
                self._run(full)
        finally:
            shutil.rmtree(self._shm_root, ignore_errors=True)
        self._verdict.seconds = time.monotonic() - started_s
        if self._verdict.is_right and not self._keeps:
            shutil.rmtree(self._layout.root, ignore_errors=True)
        return self._verdict

    def _prepare(self) -> None:
        self._layout.runs.mkdir(parents=True)
        self._shm_root.mkdir(mode=0o700)
        self._layout.fault.write_bytes(msgspec.json.encode(self._fault))
        config = case_config(self._fault, layout=self._layout, heartbeat_s=self._heartbeat_s)
        self._layout.config.write_text(config.model_dump_json())

    def _small_disk(self) -> Path | None:
        if not self._may_mount:
            return None
        return {"full-shm": self._shm_root, "full-disk": self._layout.runs}.get(self._fault.kind)

    def _run(self, full: Path | None) -> None:
        rings: list[RingGauge] = []
        if self._fault.kind == "full-shm" and self._fault.phase == "loading" and full is not None:
            fill(full)
            self._struck_s = time.monotonic()
        elif self._fault.phase == "loading" and self._strikes_from_inside(full):
            self._arm()
        with self._attempt() as attempt:
            self._watch(attempt, full=full)
            self._judge(attempt)
            rings += attempt.observer.rings
        if self._verdict.is_hang:
            return
        # A killed supervisor cannot remove its memory: the next start of a run does.
        if self._verdict.exit_code != KILLED:
            self._count_segments()
        if full is not None:
            empty(full)
        root = attempt.observer.root
        checkpoint = None if root is None else RunLayout(root).latest_checkpoint
        must_resume = self._verdict.exit_code != FINISHED
        if root is not None and checkpoint is not None and checkpoint.exists() and must_resume:
            with self._attempt(resume=root) as again:
                self._finish(again, step=int(checkpoint.resolve().name.removeprefix("step_")))
                rings += again.observer.rings
        elif self._verdict.exit_code == KILLED:
            reclaim(self._shm_root)
        self._count_segments()
        if rings:
            self._close_books(rings, checkpoint=checkpoint)

    def _attempt(self, *, resume: Path | None = None) -> Attempt:
        argv = [sys.executable, "-m", "tbactl.chaos.supervise", str(self._layout.root), str(self._shm_root)]
        argv += ["--resume", str(resume)] if resume else []
        observer = Observer(self._layout.runs, attempt=2 if resume else 1)
        return Attempt(argv, observer=observer, output=self._layout.output)

    def _count_segments(self) -> None:
        num_left = sum(path.name != BALLAST for path in self._shm_root.iterdir())
        self._verdict.num_segments = max(self._verdict.num_segments, num_left)
        self._require(not num_left, f"{num_left} segments left in shared memory")

    def _strikes_from_inside(self, full: Path | None) -> bool:
        return self._fault.kind not in FROM_OUTSIDE and full is None

    def _watch(self, attempt: Attempt, *, full: Path | None) -> None:
        """Wait for the phase, strike, and see what the run makes of it, until it ends or is ended."""
        is_asked = is_done = False
        while attempt.exit_code is None and not self._is_over(attempt):
            attempt.look()
            observer = attempt.observer
            if self._fault.phase == "draining" and not is_asked and may_drain(self._fault, version=observer.version):
                attempt.interrupt()
                is_asked = True
            # Also where it has struck already: what is held in the phase may go on.
            if not is_done and observer.is_in(self._fault):
                is_done = True
                self._version, self._pid = observer.version, observer.pid(self._fault.target)
                self._strike(attempt, full=full)
                self._layout.seen.touch()
            if self._struck_s is None and self._layout.struck.exists():
                self._struck_s = float(self._layout.struck.read_text(encoding="ascii"))
            elif full is not None and self._struck_s is not None:
                fill(full)  # what a removed file has freed
            self._note(attempt)
        attempt.observer.look()
        self._note(attempt)

    def _strike(self, attempt: Attempt, *, full: Path | None) -> None:
        """Once: a fault that was armed before the start is left to its target."""
        if self._strikes_from_inside(full):
            self._arm()
        elif self._struck_s is None and strike(
            self._fault, observer=attempt.observer, supervisor=attempt.pid, full=full
        ):
            self._struck_s = time.monotonic()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._layout.armed.touch()

    def _is_over(self, attempt: Attempt) -> bool:
        if self._cancelled.is_set():
            raise CancelledError
        self._verdict.is_hang = time.monotonic() - attempt.started_s > self._bound_s
        return self._verdict.is_hang

    def _note(self, attempt: Attempt) -> None:
        verdict, observer = self._verdict, attempt.observer
        if self._struck_s is None or observer.page is None:
            return
        since_s = time.monotonic() - self._struck_s
        is_noticed = observer.noticed(self._fault, self._expected, struck_s=self._struck_s)
        if verdict.noticed_s is None and is_noticed:
            verdict.noticed_s = since_s
        is_known = self._expected.sign == "nothing" or verdict.noticed_s is not None
        dead = self._pid if self._expected.sign == "death" else None
        if verdict.recovered_s is None and is_known:
            is_well = observer.has_recovered(self._fault, version=self._version, dead=dead)
            verdict.recovered_s = since_s if is_well else None

    def _judge(self, attempt: Attempt) -> None:
        verdict = self._verdict
        if verdict.is_hang:
            self._require(False, f"not over after {self._bound_s:g} s")
            return
        verdict.exit_code = attempt.exit_code
        verdict.num_orphans = len(attempt.orphans())
        if self._struck_s is None and self._layout.struck.exists():
            self._struck_s = float(self._layout.struck.read_text(encoding="ascii"))
        self._require(self._struck_s is not None, "the fault did not strike")
        self._require(not verdict.num_orphans, f"{verdict.num_orphans} processes left")
        assert verdict.exit_code is not None
        problem = self._expected.problem_of(verdict.exit_code, output=attempt.output)
        self._require(problem is None, problem or "")
        if verdict.exit_code != FINISHED:
            verdict.recovered_s = None
        elif attempt.observer.version != (last := num_steps(self._fault)):
            self._require(False, f"completed with {attempt.observer.version} steps of {last}")
        if self._struck_s is not None and verdict.noticed_s is None and self._expected.sign != "nothing":
            # A dead supervisor, or a full disk, leaves no event: the end itself is the sign.
            is_end = self._expected.sign == "death" and verdict.exit_code != FINISHED
            self._require(is_end, f"nobody noticed: no {self._expected.sign}")
            verdict.noticed_s = time.monotonic() - self._struck_s if is_end else None
        late = verdict.noticed_later_than(self._notice_bound_s)
        self._require(late is None, late or "")

    def _finish(self, attempt: Attempt, *, step: int) -> None:
        """The same run, resumed without a fault, must come to its end."""
        verdict = self._verdict
        while attempt.exit_code is None and not self._is_over(attempt):
            attempt.look()
            if verdict.recovered_s is None and attempt.observer.version > step:
                verdict.recovered_s = time.monotonic() - attempt.started_s
        verdict.is_resumed = attempt.exit_code == FINISHED
        orphans = attempt.orphans()
        verdict.num_orphans += len(orphans)
        self._require(verdict.is_resumed, f"its resume ended with exit code {attempt.exit_code}")
        self._require(not orphans, f"{len(orphans)} processes left by its resume")

    def _close_books(self, rings: list[RingGauge], *, checkpoint: Path | None) -> None:
        last = checkpoint.resolve() if checkpoint is not None and checkpoint.exists() else None
        account = balance(self._layout, checkpoint=last, rings=rings, seed=self._fault.seed)
        self._verdict.num_acknowledged = account.num_acknowledged
        self._verdict.num_damaged = account.num_damaged
        self._verdict.num_given_up = account.num_given_up
        self._verdict.num_lost = account.num_lost
        self._require(not account.num_lost, f"{account.num_lost} acknowledged groups lost")

    def _require(self, is_right: bool, problem: str) -> None:
        if not is_right and problem not in self._verdict.problems:
            self._verdict.problems.append(problem)

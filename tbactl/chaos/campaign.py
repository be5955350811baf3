"""Runs a schedule of faults, a few at a time."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tbactl.chaos.case import Case
from tbactl.chaos.faults import Fault
from tbactl.chaos.small_disk import can_mount
from tbactl.chaos.verdict import Verdict
from tbactl.config.layout import SHM_ROOT


def run_campaign(
    faults: Sequence[Fault],
    *,
    directory: Path,
    jobs: int,
    bound_s: float,
    on_verdict: Callable[[Verdict], None],
    keeps: bool = False,
    notice_bound_s: float | None = None,
    shm_root: Path = SHM_ROOT,
) -> list[Verdict]:
    """Run all faults.

    Args:
        faults: of a schedule.
        directory: for the cases; those that went wrong stay in it.
        jobs: cases at a time.
        bound_s: longest time for one run.
        keeps: keep the directories of those that went right, too.
        notice_bound_s: longest time until a fault is noticed; None: any.
        on_verdict: told each verdict when it is known, in no order.
        shm_root: where shared memory is made.

    Returns:
        The verdicts in the schedule's order.

    Raises:
        KeyboardInterrupt: Ctrl-C. Nothing that was started still runs.
    """
    cancelled = threading.Event()
    may_mount = can_mount()
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", dir=shm_root, ignore_cleanup_errors=True) as shm,
        ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="chaos") as pool,
    ):
        futures = [
            pool.submit(
                Case(
                    fault, directory=directory, shm_root=Path(shm), bound_s=bound_s, may_mount=may_mount,
                    cancelled=cancelled, keeps=keeps, notice_bound_s=notice_bound_s,
                ).run
            )
            for fault in faults
        ]  # fmt: skip
        verdicts = []
        try:
            for future in as_completed(futures):
                verdicts.append(future.result())
                on_verdict(verdicts[-1])
        except BaseException:
            cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return sorted(verdicts, key=lambda verdict: verdict.fault.number)

"""Judges a living child by what it writes into its slot of the control page. No clock, no process: pure."""

from __future__ import annotations

from collections.abc import Mapping

from tbactl.config.sections import SupervisionSection
from tbactl.ipc.control_page import ProcessState


def complaint(
    slot: Mapping[str, float], *, now_ns: int, started_ns: int, bounds: SupervisionSection, patient: bool = False
) -> str | None:
    """What is wrong with a child, or None.

    Args:
        slot: snapshot of its slot.
        now_ns: CLOCK_MONOTONIC now.
        started_ns: when it was started.
        bounds: the limits.
        patient: it is known to be in one long step (an evaluation): do not ask for progress.
    """
    state = ProcessState(int(slot["state"]))
    age_s = (now_ns - started_ns) / 1e9
    if state < ProcessState.READY and age_s > bounds.start_timeout_s:
        return f"not ready after {age_s:.0f} s (supervision.start_timeout_s = {bounds.start_timeout_s:g})"
    if slot["heartbeat_ns"] == 0:  # it has not come to its first heartbeat: only the limit above applies
        return None
    heartbeat_s = (now_ns - slot["heartbeat_ns"]) / 1e9
    if heartbeat_s > bounds.heartbeat_timeout_s:
        return (
            f"no heartbeat for {heartbeat_s:.1f} s (supervision.heartbeat_timeout_s = {bounds.heartbeat_timeout_s:g}): "
            f"stopped, swapped out or dead"
        )
    progress_s = (now_ns - slot["progress_ns"]) / 1e9
    if state in (ProcessState.READY, ProcessState.RUNNING) and not patient and progress_s > bounds.progress_timeout_s:
        return (
            f"no progress for {progress_s:.0f} s (supervision.progress_timeout_s = {bounds.progress_timeout_s:g}); "
            f"its stacks are in its log"
        )
    return None

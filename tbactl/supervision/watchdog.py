"""Judges living children by what they write into the control page. No clock, no process: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tbactl.config.sections import SupervisionSection
from tbactl.ipc.control_page import ProcessState, TrainerPhase

# A child that is done, or has failed, has nothing left to do but to leave.
LEAVE_S = 10.0


def complaint(
    slot: Mapping[str, float],
    *,
    now_ns: int,
    started_ns: int,
    supervision: SupervisionSection,
) -> str | None:
    """What is wrong with a child, or None.

    While it loads only the start limit applies: importing and compiling may hold the interpreter's lock for long.

    Args:
        slot: snapshot of its slot.
        now_ns: CLOCK_MONOTONIC now.
        started_ns: when it was started.
        supervision: the limits.
    """
    state = ProcessState(int(slot["state"]))
    age_s = (now_ns - started_ns) / 1e9
    if state < ProcessState.READY:
        limit_s = supervision.start_timeout_s
        return f"not ready after {age_s:.0f} s (supervision.start_timeout_s = {limit_s:g})" if age_s > limit_s else None
    progress_s = (now_ns - slot["progress_ns"]) / 1e9
    if state in (ProcessState.STOPPED, ProcessState.FAILED):
        is_stuck = progress_s > LEAVE_S
        return f"it has said {state.name} {progress_s:.0f} s ago and has not left" if is_stuck else None
    heartbeat_s = (now_ns - slot["heartbeat_ns"]) / 1e9
    if heartbeat_s > supervision.heartbeat_timeout_s:
        return (
            f"no heartbeat for {heartbeat_s:.1f} s (supervision.heartbeat_timeout_s = "
            f"{supervision.heartbeat_timeout_s:g}): it is stopped or swapped out"
        )
    limit_s = supervision.progress_timeout_s
    if slot.get("evaluating"):
        limit_s = max(limit_s, supervision.evaluation_timeout_s)
    if state is ProcessState.RUNNING and progress_s > limit_s:
        return f"its main loop has not moved for {progress_s:.0f} s (limit {limit_s:g}); its stacks are in its log"
    return None


# When nobody works and none of these has changed for long, the run as a whole stands still: every process may be alive
# and waiting for another one.
TRAINER_PROGRESS = ("policy_version", "num_trajectories_received", "checkpoint_step", "phase")
SEARCHER_PROGRESS = ("num_completions", "loaded_version", "evaluated_version_plus_1", "state", "attempt")
WAITING_PHASES = (TrainerPhase.LOADING, TrainerPhase.FILLING, TrainerPhase.WAITING)


def is_anyone_busy(trainer: Mapping[str, float], searchers: Sequence[Mapping[str, float]]) -> bool:
    """Whether the trainer computes or a searcher generates.

    The first is then judged by its own progress. A searcher's turns say nothing of what they bring: it ends by itself
    when its engine has open requests and finishes none (searcher/engine_watch.py), or its reward does not return.
    """
    is_training = TrainerPhase(int(trainer["phase"])) not in WAITING_PHASES
    return is_training or any(searcher["num_active_requests"] or searcher["evaluating"] for searcher in searchers)


def progress_of(trainer: Mapping[str, float], searchers: Sequence[Mapping[str, float]]) -> tuple[float, ...]:
    """Numbers of which at least one changes whenever the run gets on."""
    return (
        *(trainer[name] for name in TRAINER_PROGRESS),
        *(searcher[name] for searcher in searchers for name in SEARCHER_PROGRESS),
    )

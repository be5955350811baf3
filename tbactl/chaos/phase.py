"""Where a run is, by its control page."""

from __future__ import annotations

from tbactl.chaos.faults import Fault
from tbactl.chaos.settings import CHECKPOINT_PERIOD
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState, Slot, TrainerPhase


def slot_of(page: ControlPage, process: str) -> Slot:
    """Of a child, by its name."""
    role, _, index = process.partition("-")
    return page.trainer(int(index)) if role == "trainer" else page.searcher(int(index))


def loading_process(fault: Fault) -> str:
    """The one that loads while a fault strikes in that phase."""
    return "trainer-0" if fault.role == "supervisor" else fault.target


def holding_process(fault: Fault) -> str:
    """The one that makes the phase, and can make it last."""
    return loading_process(fault) if fault.phase == "loading" else "trainer-0"


def is_in_phase(page: ControlPage, fault: Fault) -> bool:
    """Whether the run is where the fault is to strike."""
    trainer = page.trainer()
    run_state, phase = page.supervisor.get("run_state"), trainer.get("phase")
    is_running, version = run_state == RunState.RUNNING, trainer.get("policy_version")
    match fault.phase:
        case "loading":
            return slot_of(page, loading_process(fault)).get("state") == ProcessState.LOADING
        case "filling":
            return is_running and phase == TrainerPhase.FILLING
        case "running":
            is_busy = phase in (TrainerPhase.TRAINING, TrainerPhase.WAITING)
            return is_running and is_busy and version >= fault.at_step
        case "syncing":
            return is_running and phase == TrainerPhase.SYNCING and version >= fault.at_step
        case "checkpointing":
            return is_running and phase == TrainerPhase.CHECKPOINTING and version >= fault.at_step
        case "draining":
            return run_state == RunState.DRAINING


def may_drain(fault: Fault, *, version: int) -> bool:
    """Whether it is time to ask the run to end."""
    # Not right after a checkpoint: there would be nothing to save.
    return version >= fault.at_step and version % CHECKPOINT_PERIOD == 1

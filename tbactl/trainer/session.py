"""One trainer process from its configuration to its end: opens what the loop needs, closes it whatever happens."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from tbactl import registry
from tbactl.checkpoints.store import CheckpointStore
from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.clock import Clock, SystemClock
from tbactl.config.layout import CheckpointLayout, ProcessConfig
from tbactl.config.tasks import reward_metrics
from tbactl.errors import ChildFailedError, TbactlError
from tbactl.ipc.child import Pulse, bind_to_cores
from tbactl.ipc.control_page import ControlPage, ProcessState, TrainerPhase
from tbactl.protocols import Learner
from tbactl.replay.buffer import ReplayBuffer
from tbactl.telemetry.fanout import FanOut
from tbactl.telemetry.trace import process_trace
from tbactl.telemetry.trajectories import TrajectoryLog
from tbactl.trainer.batches import BatchSource, ReplayBatches, TurnBatches
from tbactl.trainer.board import Board
from tbactl.trainer.buffers import new_buffer
from tbactl.trainer.checkpointing import Checkpointing, find_checkpoint, new_state, restore_state
from tbactl.trainer.intake import Intake
from tbactl.trainer.loop import TrainerLoop
from tbactl.trainer.syncing import Syncing
from tbactl.trainer.waiting import Waiter

logger = logging.getLogger(__name__)


def run_trainer(config: ProcessConfig) -> None:
    """Be trainer rank `config.index` until the run ends.

    Raises:
        TbactlError: training cannot begin or go on.
    """
    bind_to_cores(config.cores)
    page = ControlPage.open(config.shm.control)
    pulse = Pulse(page.trainer(config.index), supervisor=page.supervisor)
    pulse.start()
    pulse.enter(ProcessState.LOADING)
    try:
        learner = registry.load("tbactl.learners", config.run.trainer.kind)(config)
        if config.index == 0:
            lead(config, learner=learner, page=page, pulse=pulse, clock=SystemClock())
        else:
            follow(learner, pulse=pulse)
        # Not after a failure: other ranks may sit in a collective and not hear it. They notice the lost connection.
        learner.close()
    except BaseException:
        pulse.enter(ProcessState.FAILED)
        raise
    pulse.enter(ProcessState.STOPPED)
    pulse.stop()


def follow(learner: Any, *, pulse: Pulse) -> None:
    """Ranks above 0: do what rank 0 asks.

    Raises:
        ChildFailedError: another rank has gone.
    """
    pulse.enter(ProcessState.READY)
    pulse.enter(ProcessState.RUNNING)
    try:
        learner.serve(while_waiting=pulse.progress)
    except TbactlError:
        raise
    except RuntimeError as error:
        raise ChildFailedError(f"another trainer rank has gone, or this one has failed: {error}") from error


def lead(config: ProcessConfig, *, learner: Learner, page: ControlPage, pulse: Pulse, clock: Clock) -> None:
    """Rank 0: restore what is to be resumed, then the loop.

    Raises:
        CheckpointError: the checkpoint to resume from cannot be used.
        ConfigError: a logger cannot work.
    """
    run = config.run
    store = CheckpointStore(config.layout, keep_last=run.checkpoint.keep_last, keep_every=run.checkpoint.keep_every)
    checkpoint = find_checkpoint(config)
    if checkpoint is None:
        state = new_state(config)
        buffer = new_buffer(run, note_progress=pulse.progress)
    else:
        state, buffer = restore_state(checkpoint, config, note_progress=pulse.progress)
        learner.load(CheckpointLayout(checkpoint).learner)
        store.forget_after(state.policy_version)
        logger.info("resumed checkpoint=%s trajectories=%d", checkpoint.name, len(buffer))
    checkpointing = Checkpointing(
        store,
        state=state,
        buffer=buffer,
        learner=learner,
        asynchronous=run.checkpoint.asynchronous,
        timeout_s=run.supervision.progress_timeout_s,
        note_progress=pulse.progress,
    )
    if checkpoint is not None:
        checkpointing.note_resumed()
    with ExitStack() as stack:
        stack.callback(checkpointing.close)
        loggers = FanOut.of(run.logging)
        loggers.start(config.run_directory, run.model_dump(mode="json"))
        stack.callback(loggers.close)
        trajectory_log = TrajectoryLog(config.run_directory, num_per_step=run.logging.trajectories_per_step)
        stack.callback(trajectory_log.close)
        trace = process_trace(config)
        stack.callback(trace.close)
        paths = [config.shm.ring(index) for index in range(run.searchers.num_searchers)]
        intake = Intake.open(paths, buffer=buffer, state=state)
        stack.callback(intake.close)
        waiter = Waiter(page, pulse=pulse, clock=clock, timeout_s=run.supervision.progress_timeout_s)
        board = Board(page.trainer(), state=state, buffer=buffer)
        loop = TrainerLoop(
            run,
            state=state,
            learner=learner,
            batches=_batches(config, page=page, buffer=buffer, intake=intake, state=state, waiter=waiter, board=board),
            intake=intake,
            buffer=buffer,
            syncing=Syncing(
                run.sync,
                acknowledge_timeout_s=run.supervision.acknowledge_timeout_s,
                page=page,
                weights_directory=config.shm.weights,
                learner=learner,
                buffer=buffer,
                state=state,
                clock=clock,
                reward_metrics=reward_metrics(run.task.kind),
            ),
            checkpointing=checkpointing,
            board=board,
            waiter=waiter,
            loggers=loggers,
            trajectory_log=trajectory_log,
            trace=trace,
            clock=clock,
        )
        board.show_state()
        pulse.enter(ProcessState.READY)
        if waiter.until(lambda: waiter.has_begun, what="the run to begin"):
            pulse.enter(ProcessState.RUNNING)
            loop.run()


def _batches(
    config: ProcessConfig,
    *,
    page: ControlPage,
    buffer: ReplayBuffer,
    intake: Intake,
    state: TrainerState,
    waiter: Waiter,
    board: Board,
) -> BatchSource:
    if config.run.mode == "sync":
        return TurnBatches(config.run, page=page, intake=intake, state=state, waiter=waiter)

    def when_filling() -> None:
        board.enter(TrainerPhase.FILLING)
        board.show_state()

    return ReplayBatches(
        config.run, buffer=buffer, intake=intake, state=state, waiter=waiter, when_filling=when_filling
    )

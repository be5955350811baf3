"""The trainer's loop, rank 0. Imports no torch: the heavy half is behind the `Learner` protocol.

    rings -> Intake -> ReplayBuffer -> BatchSource -> Learner.update -> policy version + 1
                                                                          |-> Syncing.publish   every sync.period steps
                                                                          |-> loggers, control page   every step
                                                                          `-> Checkpoints.write  every checkpoint.period

    the loop      waits for                                    unblocked by                       bounded by
    ------------  -------------------------------------------  ---------------------------------  -------------------
    at its start  the supervisor's RUNNING                     all children READY                 start_timeout_s
    for a batch   trajectories (see batches.py)                searchers                          progress_timeout_s
    for anything  never longer than the run lives: DRAINING or STOPPING on the control page ends every wait

It never waits for searchers to take weights (mode async), nor for an evaluation. After the last step it publishes,
writes a checkpoint, says `finished` and leaves; the supervisor decides when the run is over.
"""

from __future__ import annotations

import logging

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.clock import Clock
from tbactl.config.sections import RunConfig
from tbactl.ipc.control_page import TrainerPhase
from tbactl.objectives.schedules import target_at, target_metrics
from tbactl.protocols import Learner, Logger
from tbactl.replay.buffer import ReplayBuffer
from tbactl.telemetry.jsonl import ELAPSED
from tbactl.telemetry.trace import Trace
from tbactl.telemetry.trajectories import TrajectoryLog
from tbactl.trainer.batches import BatchSource
from tbactl.trainer.board import Board
from tbactl.trainer.checkpointing import Checkpointing
from tbactl.trainer.intake import Intake
from tbactl.trainer.residual_metrics import residual_metrics
from tbactl.trainer.step_metrics import Pace, batch_metrics, buffer_metrics
from tbactl.trainer.syncing import Syncing
from tbactl.trainer.timing import Stopwatch
from tbactl.trainer.waiting import Waiter
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)


class TrainerLoop:
    """Drives one learner through the steps of a run. Single-threaded."""

    def __init__(
        self,
        run: RunConfig,
        *,
        state: TrainerState,
        learner: Learner,
        batches: BatchSource,
        intake: Intake,
        buffer: ReplayBuffer,
        syncing: Syncing,
        checkpointing: Checkpointing,
        board: Board,
        waiter: Waiter,
        loggers: Logger,
        trajectory_log: TrajectoryLog,
        trace: Trace,
        clock: Clock,
    ) -> None:
        self._run = run
        self._state = state
        self._learner = learner
        self._batches = batches
        self._intake = intake
        self._buffer = buffer
        self._syncing = syncing
        self._checkpointing = checkpointing
        self._board = board
        self._waiter = waiter
        self._loggers = loggers
        self._trajectory_log = trajectory_log
        self._clock = clock
        self._pace = Pace()
        self._watch = Stopwatch(trace)
        self._counted_s = clock.monotonic_s()

    def run(self) -> None:
        """Train until `max_steps`, or until the supervisor ends the run; then a checkpoint, unless it must be at once.

        Raises:
            ChildFailedError: the searchers are silent.
            TbactlError: the policy has diverged.
        """
        self._counted_s = self._clock.monotonic_s()
        if self._state.policy_version > 0:
            # A resumed run: searchers begin with the initial policy and need today's.
            self._publish()
        while self._state.policy_version < self._run.trainer.max_steps:
            if not self._step():
                break
        if self._waiter.must_leave:
            logger.warning("step=%d leaving without a checkpoint", self._state.policy_version)
            return
        self._batches.settle()
        if not self._checkpointing.has(self._state.policy_version):
            self._write_checkpoint()
        self._finish_checkpoint()
        self._board.show_state()
        if self._state.policy_version >= self._run.trainer.max_steps:
            self._board.show_finished()

    def _step(self) -> bool:
        """One optimizer step and what follows from it; False when the run is ending."""
        start_s = self._clock.monotonic_s()
        self._board.enter(TrainerPhase.WAITING)
        groups = self._batches.next(watch=self._watch)
        if not groups:
            return False
        version = self._state.policy_version
        self._board.enter(TrainerPhase.TRAINING)
        target = target_at(self._run.objective, step=version)
        with self._watch.measure("update"):
            report = self._learner.update(
                groups,
                beta=target.beta,
                reference_exponent=target.reference_exponent,
                should_abort=self._waiter.note_progress,
            )
        if report is None:
            return False
        self._batches.commit(report.residuals)
        self._count(groups)
        if self._is_sync_step:
            self._publish()
        metrics = report.metrics | batch_metrics(groups, policy_version=version)
        metrics |= target_metrics(self._run.objective, step=version)
        metrics |= residual_metrics(groups, residuals=report.residuals, policy_version=version)
        self._report(metrics, groups=groups, step_s=self._clock.monotonic_s() - start_s)
        if self._is_checkpoint_step:
            self._write_checkpoint()
        return True

    def _count(self, groups: list[TrajectoryGroup]) -> None:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        num_tokens = sum(len(trajectory.completion.token_ids) for trajectory in trajectories)
        self._state.count(trajectories_trained=len(trajectories), tokens_trained=num_tokens)
        self._state.policy_version += 1

    @property
    def _is_last_step(self) -> bool:
        return self._state.policy_version == self._run.trainer.max_steps

    @property
    def _is_sync_step(self) -> bool:
        return self._state.policy_version % self._run.sync.period == 0 or self._is_last_step

    @property
    def _is_checkpoint_step(self) -> bool:
        period = self._run.checkpoint.period
        return period > 0 and self._state.policy_version % period == 0

    def _publish(self) -> None:
        evaluation = self._run.evaluation
        is_due = evaluation.period > 0 and self._state.policy_version % evaluation.period == 0
        if evaluation.num_prompts and (is_due or self._is_last_step):
            self._state.evaluate_version = self._state.policy_version
        # Shown before the weights can be loaded: searcher 0 must not pass by a version that it is to evaluate.
        self._board.show_state()
        self._board.enter(TrainerPhase.SYNCING)
        with self._watch.measure("publish"):
            self._syncing.publish()

    def _report(self, metrics: dict[str, float], *, groups: list[TrajectoryGroup], step_s: float) -> None:
        state = self._state
        now_s = self._clock.monotonic_s()
        state.training_s += now_s - self._counted_s
        self._counted_s = now_s
        metrics |= self._intake.take_fresh_metrics()
        metrics |= buffer_metrics(self._buffer, state=state, num_damaged=self._intake.num_damaged)
        metrics |= self._syncing.observe()
        self._note_completed()
        metrics |= self._pace.metrics(self._watch.take(), step_s=step_s)
        metrics |= {
            ELAPSED: state.training_s,
            "trainer/trajectories/total": float(state.total("trajectories_trained")),
            "trainer/completion_tokens/total": float(state.total("tokens_trained")),
        }
        self._board.show_metrics(metrics)
        self._board.show_state()
        self._loggers.log_metrics(state.policy_version, metrics)
        self._trajectory_log.log(state.policy_version, groups)
        shown = (
            "intake/reward/mean",
            "objective/loss/mean",
            "objective/kl/mean",
            "intake/completion_tokens/mean",
        )
        numbers = " ".join(f"{name.split('/')[1]}={metrics.get(name, float('nan')):.4g}" for name in shown)
        logger.info("step=%d %s seconds=%.2f", state.policy_version, numbers, step_s)

    def _write_checkpoint(self) -> None:
        self._board.enter(TrainerPhase.CHECKPOINTING)
        with self._watch.measure("checkpoint"):
            self._finish_checkpoint()  # shown before the next one, which may fail
            self._checkpointing.write()
        self._note_completed()
        self._waiter.note_progress()

    def _finish_checkpoint(self) -> None:
        self._checkpointing.finish()
        self._note_completed()

    def _note_completed(self) -> None:
        """A checkpoint is on the disk since the last look: show it."""
        completed = self._checkpointing.take_completed()
        if completed is not None:
            self._watch.seconds["checkpoint_completion"] = completed.seconds
            self._board.show_checkpoint(completed.step)

"""Where the trainer's batches come from, in each mode.

    mode     consumes                        waits for                          unblocked by
    -------  ------------------------------  ---------------------------------  ---------------------------------------
    async    the replay buffer               the first initial_trajectories;    searchers, at any time
                                             max_samples_per_insert to allow it
    sync     exactly the B groups of a turn  the turn's groups, each turn       searchers, once it granted B more groups

Before this file on the way of a trajectory: the replay buffer. After it: the learner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tbactl import registry
from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.config.derived import batch_trajectories
from tbactl.config.sections import ReplaySection, RunConfig
from tbactl.ipc.control_page import ControlPage
from tbactl.objectives.schedules import inverse_temperature_at, on_policy_fraction_at
from tbactl.replay.buffer import MIN_GROUP_SIZE, ReplayBuffer
from tbactl.replay.samplers import Sampler
from tbactl.replay.snapshot import rng_state_from_json, rng_state_to_json
from tbactl.trainer.intake import Intake
from tbactl.trainer.pacing import Pacing
from tbactl.trainer.timing import Stopwatch
from tbactl.trainer.waiting import Waiter
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)


class BatchSource(Protocol):
    """One of the two modes."""

    def next(self, *, watch: Stopwatch) -> list[TrajectoryGroup]:
        """The groups of the next optimizer step; empty when the run is ending."""
        ...

    def commit(self, residuals: Mapping[int, float]) -> None:
        """The step on the last batch is done: let the state to be saved include it.

        Args:
            residuals: of the batch's trajectories, by uid; priorities of later draws.
        """
        ...

    def settle(self) -> None:
        """The run ends here: give back a batch that was not trained on, take in what a checkpoint should hold."""
        ...


class ReplayBatches:
    """Mode async: whatever the sampler draws. The buffer is used again and again while searchers are slow.

    What has arrived is taken in before each step or, with `replay.intake` = at-sync, before those that follow a sync,
    unless `replay.min_samples_per_insert` leaves it in the rings. Whatever these say, data is taken in while no batch
    can be drawn: the buffer fills for the first time, holds nothing to draw, or has been used as often as
    `replay.max_samples_per_insert` allows. At a sync, at-sync waits for what all steps until the next will need.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        buffer: ReplayBuffer,
        intake: Intake,
        state: TrainerState,
        waiter: Waiter,
        when_filling: Callable[[], None],
    ) -> None:
        self._run = run
        self._buffer = buffer
        self._intake = intake
        self._state = state
        self._waiter = waiter
        self._when_filling = when_filling
        self._pacing = Pacing.of(run.replay, state=state)
        self._batch_trajectories = batch_trajectories(run)
        self._rng = rng_state_from_json(state.sampler_rng)
        self._drawn_rng: dict[str, Any] = state.sampler_rng
        self._sampler: type[Sampler] = registry.load("tbactl.samplers", run.replay.sampler)

    def next(self, *, watch: Stopwatch) -> list[TrajectoryGroup]:
        """Take in what has arrived, wait while no batch may be drawn, draw."""
        with watch.measure("intake"):
            self._take_in()
        groups: list[TrajectoryGroup] = []
        while not groups:
            with watch.measure("wait"):
                if not self._waiter.until(self._can_draw, what=self._awaited):
                    return []
            with watch.measure("sample"):
                groups = self._draw()
        return groups

    def commit(self, residuals: Mapping[int, float]) -> None:
        """The draws are final, and the generator's state after them is the one to go on with."""
        self._buffer.note_residuals(residuals)
        self._buffer.commit_batch()
        self._state.sampler_rng = self._drawn_rng

    def settle(self) -> None:
        """An aborted batch is to be drawn again. What has arrived belongs to the checkpoint: it is not made again."""
        self._buffer.undo_batch()
        self._intake.drain()

    def _take_in(self) -> None:
        self._intake.drain(is_wanted=lambda: self._lacks_data or (self._is_intake_step and self._pacing.has_caught_up))

    def _can_draw(self) -> bool:
        if not self._lacks_data:
            return True
        self._take_in()
        if self._is_filling:
            self._when_filling()
        return not self._lacks_data

    @property
    def _lacks_data(self) -> bool:
        """Whether no batch may be drawn from what the buffer holds."""
        return self._is_filling or not self._buffer.num_eligible_prompts or not self._pacing.allows(self._num_needed)

    @property
    def _is_filling(self) -> bool:
        return self._buffer.counters.num_insertions < self._run.replay.initial_trajectories

    @property
    def _is_intake_step(self) -> bool:
        return self._run.replay.intake == "continuous" or self._state.policy_version % self._run.sync.period == 0

    @property
    def _num_needed(self) -> int:
        """Trajectories that will be trained on before the next intake."""
        num_steps = 1
        if self._run.replay.intake == "at-sync":
            version, period = self._state.policy_version, self._run.sync.period
            num_steps = min(period - version % period, self._run.trainer.max_steps - version)
        return num_steps * self._batch_trajectories

    @property
    def _awaited(self) -> str:
        if self._is_filling:
            return "trajectories to fill the replay buffer"
        if not self._buffer.num_eligible_prompts:
            return "trajectories of one prompt, two at least"
        return f"new trajectories (replay.max_samples_per_insert = {self._run.replay.max_samples_per_insert})"

    def _draw(self) -> list[TrajectoryGroup]:
        sampler = self._sampler.from_section(replay_at(self._run.replay, step=self._state.policy_version))
        groups = sampler.select(
            self._buffer,
            num_prompts=self._run.trainer.prompts_per_step,
            num_per_prompt=self._run.trainer.completions_per_prompt,
            policy_version=self._state.policy_version,
            rng=self._rng,
        )
        self._drawn_rng = rng_state_to_json(self._rng)
        return groups


def replay_at(replay: ReplaySection, *, step: int) -> ReplaySection:
    """The settings of draws as their schedules have them at an optimizer step."""
    return replay.model_copy(
        update={
            "on_policy_fraction": on_policy_fraction_at(replay, step=step),
            "inverse_temperature": inverse_temperature_at(replay, step=step),
        }
    )


class TurnBatches:
    """Mode sync: searchers and trainer take turns, on-policy.

    A turn: all searchers hold the newest policy; B groups are granted; exactly these, in the order of the prompt
    stream, make the batch. A searcher that loses a group sends it empty. So a run depends on its seed alone. Nothing
    of a turn enters the state before its step is done: a run stopped in mid-turn has its groups generated again.
    """

    def __init__(
        self, run: RunConfig, *, page: ControlPage, intake: Intake, state: TrainerState, waiter: Waiter
    ) -> None:
        self._num_prompts = run.trainer.prompts_per_step
        self._num_per_prompt = run.trainer.completions_per_prompt
        self._num_ranks = run.trainer.num_ranks
        self._slot = page.trainer()
        self._searchers = [page.searcher(index) for index in range(page.num_searchers)]
        self._intake = intake
        self._state = state
        self._waiter = waiter
        self._turn: dict[tuple[int, int], TrajectoryGroup] = {}
        self._granted = state.granted_groups

    def next(self, *, watch: Stopwatch) -> list[TrajectoryGroup]:
        """Grant a turn and wait for its groups. Of each the first K trajectories are used."""
        self._turn = {}
        groups: list[TrajectoryGroup] = []
        with watch.measure("wait"):
            # Each rank needs a group; a turn in which too many failed is followed by another.
            while len(groups) < self._num_ranks:
                if not self._take_turn():
                    return []
                groups = [self._trained(group) for group in self._in_order() if self._is_trainable(group)]
        return groups

    def commit(self, residuals: Mapping[int, float]) -> None:
        """The turn's groups enter the buffer, and the state."""
        for group in self._in_order():
            self._intake.admit(group)
        self._state.granted_groups = self._granted

    def settle(self) -> None:
        """Nothing: a turn that was not finished is taken again."""

    def _take_turn(self) -> bool:
        """Another B groups; False when the run is ending."""
        if not self._waiter.until(self._all_loaded, what=f"policy version {self._state.policy_version} to be loaded"):
            return False
        self._granted += self._num_prompts
        self._slot.set(granted_groups=self._granted)
        wanted = len(self._turn) + self._num_prompts
        return self._waiter.until(lambda: self._collect() >= wanted, what=f"the {wanted} groups of this turn")

    def _all_loaded(self) -> bool:
        return all(slot.get("loaded_version") >= self._slot.get("published_version") for slot in self._searchers)

    def _collect(self) -> int:
        for group in self._intake.receive():
            key = (group.stream_position, group.searcher)
            if key in self._turn or group.stream_position <= self._state.stream_positions[group.searcher]:
                # A searcher that died between writing and moving its cursor: the same prompt and seed, the same group,
                # in the same turn or after it.
                logger.warning("prompt=%d of searcher %d came twice", group.prompt_id, group.searcher)
                continue
            self._turn[key] = group
        return len(self._turn)

    def _in_order(self) -> list[TrajectoryGroup]:
        return [self._turn[key] for key in sorted(self._turn)]

    @staticmethod
    def _is_trainable(group: TrajectoryGroup) -> bool:
        return len(group.trajectories) >= MIN_GROUP_SIZE

    def _trained(self, group: TrajectoryGroup) -> TrajectoryGroup:
        return replace(group, trajectories=group.trajectories[: self._num_per_prompt])


def first_rng_state(seed: int) -> dict[str, Any]:
    """State of the sampler's generator at the start of a run."""
    return rng_state_to_json(np.random.default_rng(seed))

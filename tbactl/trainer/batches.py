"""Where the trainer's batches come from, in each mode.

    mode     consumes                        waits for                          unblocked by
    -------  ------------------------------  ---------------------------------  ---------------------------------------
    async    the replay buffer               the first initial_trajectories     searchers, at any time
    sync     exactly the B groups of a turn  the turn's groups, each turn       searchers, once it granted B more groups

Before this file on the way of a trajectory: the replay buffer. After it: the learner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.config.sections import RunConfig
from tbactl.ipc.control_page import ControlPage
from tbactl.replay.buffer import MIN_GROUP_SIZE, ReplayBuffer
from tbactl.replay.samplers import MixtureSampler
from tbactl.replay.snapshot import rng_state_from_json, rng_state_to_json
from tbactl.trainer.intake import Intake
from tbactl.trainer.timing import Stopwatch
from tbactl.trainer.waiting import Waiter
from tbactl.types import TrajectoryGroup

logger = logging.getLogger(__name__)


class BatchSource(Protocol):
    """One of the two modes."""

    def next(self, *, watch: Stopwatch) -> list[TrajectoryGroup]:
        """The groups of the next optimizer step; empty when the run is ending."""
        ...

    def commit(self) -> None:
        """The step on the last batch is done: let the state to be saved include it."""
        ...

    def settle(self) -> None:
        """The run ends here: give back a batch that was not trained on, take in what a checkpoint should hold."""
        ...


class ReplayBatches:
    """Mode async: whatever the sampler draws. The buffer may be used again and again while searchers are slow."""

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
        self._rng = rng_state_from_json(state.sampler_rng)
        self._drawn_rng: dict[str, Any] = state.sampler_rng
        self._sampler = MixtureSampler(
            on_policy_fraction=run.replay.on_policy_fraction,
            prioritization=run.replay.prioritization,
            inverse_temperature=run.replay.inverse_temperature,
            max_staleness=run.replay.max_staleness,
        )

    def next(self, *, watch: Stopwatch) -> list[TrajectoryGroup]:
        """Take in what has arrived, wait until the buffer is filled for the first time, draw."""
        with watch.measure("intake"):
            self._intake.drain()
        groups: list[TrajectoryGroup] = []
        while not groups:
            with watch.measure("wait"):
                if not self._waiter.until(self._can_draw, what="trajectories to fill the replay buffer"):
                    return []
            with watch.measure("sample"):
                groups = self._draw()
        return groups

    def commit(self) -> None:
        """The draws are final, and the generator's state after them is the one to go on with."""
        self._buffer.commit_batch()
        self._state.sampler_rng = self._drawn_rng

    def settle(self) -> None:
        """An aborted batch is to be drawn again. What has arrived belongs to the checkpoint: it is not made again."""
        self._buffer.undo_batch()
        self._intake.drain()

    def _can_draw(self) -> bool:
        if self._buffer.counters.num_insertions < self._run.replay.initial_trajectories:
            self._intake.drain()
            self._when_filling()
            return False
        if not self._buffer.num_eligible_prompts:
            self._intake.drain()
        return self._buffer.num_eligible_prompts > 0

    def _draw(self) -> list[TrajectoryGroup]:
        groups = self._sampler.select(
            self._buffer,
            num_prompts=self._run.trainer.prompts_per_step,
            num_per_prompt=self._run.trainer.completions_per_prompt,
            policy_version=self._state.policy_version,
            rng=self._rng,
        )
        self._drawn_rng = rng_state_to_json(self._rng)
        return groups


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

    def commit(self) -> None:
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

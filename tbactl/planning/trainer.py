"""The simulated trainer: the steps of `tbactl.trainer.loop`, with both modes of `tbactl.trainer.batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tbactl.config.derived import batch_trajectories
from tbactl.objectives.schedules import on_policy_fraction_at
from tbactl.planning.processors import Wait, Worker
from tbactl.planning.searcher import SimulatedSearcher
from tbactl.planning.stock import Drawn, Stock
from tbactl.planning.world import World

# So much is enough for every average; a set-up whose searchers are far too fast would be simulated for ever.
MAX_GROUPS = 20_000
MIN_STEPS = 20


class SimulatedTrainer:
    """Takes the scenario's steps, and keeps the books.

    Attributes:
        version: optimizer steps done.
        num_received: trajectories.
        num_trained: trajectories.
        num_new: of these, inserted after their prompt was last drawn.
        wait_s: waiting for searchers, added up.
        sync_s: publishing, and waiting at a barrier.
        step_ends_s: when each step was over.
        staleness: of each batch: mean, p50, p95, maximum.
    """

    def __init__(self, world: World, *, searchers: Sequence[SimulatedSearcher], threads: float) -> None:
        self._world = world
        self._env = world.env
        self._scenario = world.scenario
        self._run = world.scenario.run
        self._costs = world.scenario.costs
        self._searchers = searchers
        self._worker = Worker(world.processors, threads=threads, num_processes=self._run.trainer.num_ranks)
        self._stock = Stock(self._run.replay, group_size=self._run.searchers.num_completions, rng=world.rng)
        self._next_ring = 0
        self._turn_versions: list[int] = []
        self.version = 0
        self.num_received = 0
        self.num_trained = 0
        self.num_new = 0
        self.wait_s = 0.0
        self.sync_s = 0.0
        self.step_ends_s: list[float] = []
        self.staleness: list[tuple[float, float, float, float]] = []

    def run(self) -> Wait:
        """Step after step."""
        take = self._take_turn if self._run.mode == "sync" else self._take_batch
        while self.version < self._scenario.num_steps and not self._has_seen_enough:
            drawn: list[Drawn] = []
            yield from take(drawn)
            yield from self._worker.work(self._world.vary(self._scenario.step_s, spread=self._costs.train_spread))
            self._count(drawn[0])
            if self.version % self._run.sync.period == 0 or self.version == self._run.trainer.max_steps:
                yield from self._publish()
            self.step_ends_s.append(self._env.now)
            period = self._run.checkpoint.period
            if period and self.version % period == 0:
                yield from self._worker.work(self._costs.checkpoint_s)
        self._worker.set_busy(is_busy=False)

    @property
    def _has_seen_enough(self) -> bool:
        num_groups = self.num_received / self._run.searchers.num_completions
        return self.version >= MIN_STEPS and num_groups > MAX_GROUPS

    def _count(self, drawn: Drawn) -> None:
        ages = np.maximum(0, self.version - drawn.versions)
        p50, p95 = np.percentile(ages, (50, 95))
        self.staleness.append((float(ages.mean()), float(p50), float(p95), float(ages.max())))
        self.num_trained += len(drawn.versions)
        self.num_new += drawn.num_new
        self.version += 1

    def _publish(self) -> Wait:
        start_s = self._env.now
        period = self._run.evaluation.period
        if period and self.version % period == 0:
            self._world.evaluate_version = self.version
        yield from self._worker.work(self._costs.publish_s)
        self._world.published_version = self.version
        self._world.announce()
        if self._costs.barrier:
            yield from self._until(self._is_loaded)
        self.sync_s += self._env.now - start_s

    def _is_loaded(self) -> bool:
        return all(searcher.loaded_version >= self.version for searcher in self._searchers)

    def _until(self, is_done: Callable[[], bool]) -> Wait:
        while not is_done():
            self._worker.set_busy(is_busy=False)
            yield self._world.arrival

    def _wait_until(self, is_done: Callable[[], bool]) -> Wait:
        start_s = self._env.now
        yield from self._until(is_done)
        self.wait_s += self._env.now - start_s

    def _take_turn(self, drawn: list[Drawn]) -> Wait:
        """Mode sync: grant B groups to searchers that hold the newest weights, wait for all of them."""
        num_prompts, num_per_prompt = self._run.trainer.prompts_per_step, self._run.trainer.completions_per_prompt
        yield from self._wait_until(self._is_loaded)
        self._world.granted_groups += num_prompts
        self._world.announce()
        self._turn_versions = []
        yield from self._wait_until(lambda: self._collect() >= num_prompts)
        drawn.append(Drawn(np.repeat(np.array(self._turn_versions), num_per_prompt), num_prompts * num_per_prompt))

    def _collect(self) -> int:
        num_before = len(self._turn_versions)
        for ring in self._world.rings:
            while ring:
                self._turn_versions.append(ring.popleft().version)
                self.num_received += self._run.searchers.num_completions
        if len(self._turn_versions) > num_before:
            self._tell_of_room()
        return len(self._turn_versions)

    def _tell_of_room(self) -> None:
        if any(searcher.backlog for searcher in self._searchers):
            self._world.announce()

    def _take_batch(self, drawn: list[Drawn]) -> Wait:
        """Mode async: take in what has arrived, wait while no batch may be drawn, draw."""
        self._take_in()
        yield from self._wait_until(self._can_draw)
        trainer = self._run.trainer
        drawn.append(
            self._stock.draw(
                num_prompts=trainer.prompts_per_step,
                num_per_prompt=trainer.completions_per_prompt,
                on_policy_fraction=on_policy_fraction_at(self._run.replay, step=self.version),
            )
        )

    def _can_draw(self) -> bool:
        limit = self._run.replay.max_staleness
        if limit is not None:
            self._stock.expire(oldest_version=self.version - limit)
        if self._lacks_data:
            self._take_in()
        return not self._lacks_data

    def _take_in(self) -> None:
        num_taken = num_empty = 0
        while num_empty < len(self._world.rings) and self._wants_data:
            ring = self._world.rings[self._next_ring]
            self._next_ring = (self._next_ring + 1) % len(self._world.rings)
            num_empty = 0 if ring else num_empty + 1
            if ring:
                group = ring.popleft()
                num_taken += 1
                self.num_received += self._run.searchers.num_completions
                if self._world.rng.random() < self._scenario.trainable_share:
                    self._stock.insert(group)
        if num_taken:
            self._tell_of_room()

    @property
    def _wants_data(self) -> bool:
        replay = self._run.replay
        is_intake_step = replay.intake == "continuous" or self.version % self._run.sync.period == 0
        has_caught_up = self.num_trained >= replay.min_samples_per_insert * self.num_received
        return self._lacks_data or (is_intake_step and has_caught_up)

    @property
    def _lacks_data(self) -> bool:
        replay = self._run.replay
        if self.num_received < replay.initial_trajectories or not self._stock.num_prompts:
            return True
        limit = replay.max_samples_per_insert
        return limit is not None and self.num_trained + self._num_needed > limit * self.num_received

    @property
    def _num_needed(self) -> int:
        """Trajectories that will be trained on before the next intake."""
        num_steps = 1
        if self._run.replay.intake == "at-sync":
            period = self._run.sync.period
            num_steps = min(period - self.version % period, self._run.trainer.max_steps - self.version)
        return num_steps * batch_trajectories(self._run)

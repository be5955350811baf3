"""A simulated searcher: the turns of `tbactl.searcher.loop`, with parts of groups for completions.

What is in flight shares the engine. A group is one part, or several of different lengths, and all advance at the same
rate, which falls with their number: so a heap of where they end on one common scale is enough. As in the loop, groups
are begun by the completions that are in flight, in mode sync by the groups.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from tbactl.config.derived import most_open_groups
from tbactl.planning.processors import NEGLIGIBLE_S, Wait, Worker
from tbactl.planning.stock import MadeGroup
from tbactl.planning.world import World


class _Part(NamedTuple):
    end: float
    """On the scale of `SimulatedSearcher._progress`."""
    position: int
    number: int
    is_last: bool
    version: int
    start_s: float


class SimulatedSearcher:
    """Runs until the simulation ends.

    Attributes:
        loaded_version: of its weights.
        num_started: groups.
        num_finished: groups that came out of the engine.
        in_flight_s: number of groups in flight, integrated over time.
        latency_s: from a group's start to its end in the engine, added up.
    """

    def __init__(self, world: World, *, index: int, threads: float) -> None:
        self._world = world
        self._env = world.env
        self._scenario = world.scenario
        self._costs = world.scenario.costs
        self._capacity = world.scenario.run.searchers.max_concurrent_groups
        self._most_open = most_open_groups(world.scenario.run)
        self._part_lengths = world.scenario.part_lengths
        self._index = index
        self._worker = Worker(world.searcher_processors, threads=threads)
        self._next_position = index
        self._in_flight: list[_Part] = []
        self._num_open = 0
        self._progress = 0.0
        self._num_scoring = 0
        self._scorer_free_s = 0.0
        self._outbox: deque[MadeGroup] = deque()
        self._evaluates = index == 0 and world.scenario.run.evaluation.num_prompts > 0
        self._evaluated_version = -1
        self.loaded_version = 0
        self.num_started = 0
        self.num_finished = 0
        self._idle_s = 0.0
        self._idle_since_s: float | None = None
        self.in_flight_s = 0.0
        self.latency_s = 0.0

    @property
    def speed(self) -> float:
        """Seconds of measured work done in a second, now."""
        return self._worker.speed

    @property
    def num_in_flight(self) -> int:
        """Groups in the engine, with all their completions or some."""
        return self._num_open

    @property
    def load(self) -> float:
        """Completions in the engine, as whole groups."""
        return len(self._in_flight) / len(self._part_lengths)

    @property
    def backlog(self) -> int:
        """Groups that wait for their reward or for room in the ring."""
        return self._num_scoring + len(self._outbox)

    @property
    def idle_s(self) -> float:
        """Time without anything to do, so far."""
        return self._idle_s + (0.0 if self._idle_since_s is None else self._env.now - self._idle_since_s)

    def run(self) -> Wait:
        """Turn after turn."""
        while True:
            self._flush()
            if self._is_asked and self.loaded_version >= self._world.evaluate_version:
                yield from self._evaluate()
            elif self._is_behind and not (self._costs.barrier and self._in_flight):
                yield from self._load()
            else:
                yield from self._explore()

    @property
    def _is_asked(self) -> bool:
        return self._evaluates and self._world.evaluate_version > self._evaluated_version

    @property
    def _is_behind(self) -> bool:
        return self._world.published_version > self.loaded_version

    def _explore(self) -> Wait:
        while self._may_start():
            self._start()
        if self._in_flight:
            self._worker.set_busy(is_busy=True)
            yield from self._decode(self._rest_s, is_interruptible=True)
            return
        self._worker.set_busy(is_busy=False)
        self._idle_since_s = self._env.now
        yield self._world.news
        self._idle_s += self._env.now - self._idle_since_s
        self._idle_since_s = None

    def _may_start(self) -> bool:
        if not self._has_room:
            return False
        if self._scenario.run.mode == "sync":
            return not self._is_behind and self._next_position < self._world.granted_groups
        return self.backlog < self._capacity and not (self._costs.barrier and self._is_behind)

    @property
    def _has_room(self) -> bool:
        return self._num_open < self._most_open and self.load + 1 <= self._capacity

    def _start(self) -> None:
        length = self._world.vary(1.0, spread=self._costs.generate_spread)
        last = len(self._part_lengths) - 1
        for number, share in enumerate(self._part_lengths):
            end = self._progress + length * share
            heapq.heappush(
                self._in_flight,
                _Part(end, self._next_position, number, number == last, self.loaded_version, self._env.now),
            )
        self._num_open += 1
        self._next_position += self._scenario.run.searchers.num_searchers
        self.num_started += 1

    @property
    def _rate(self) -> float:
        """Completions' lengths advanced in a second: 1 / (seconds that one of mean length takes among so many).

        At full load all together are as fast as was measured, when places were empty too until a whole group fitted.
        """
        full_s = self._capacity * self._scenario.group_s
        load = self.load / self._capacity
        fixed = self._costs.fixed_share if self._has_room else 0.0
        return self._worker.speed / (full_s * (fixed + (1.0 - fixed) * load))

    @property
    def _rest_s(self) -> float:
        """Until the next part ends."""
        return (self._in_flight[0].end - self._progress) / self._rate

    def _decode(self, seconds: float, *, is_interruptible: bool) -> Wait:
        """Let what is in flight advance for so long, or until something happens."""
        rate, number, start_s = self._rate if self._in_flight else 0.0, self.num_in_flight, self._env.now
        wait = self._env.timeout(max(0.0, seconds)) | self._worker.speed_changes
        yield wait | self._world.news if is_interruptible else wait
        elapsed_s = self._env.now - start_s
        self._progress += elapsed_s * rate
        self.in_flight_s += elapsed_s * number
        while self._in_flight and self._in_flight[0].end <= self._progress + NEGLIGIBLE_S:
            part = heapq.heappop(self._in_flight)
            if part.is_last:
                self._finish(part)

    def _finish(self, group: _Part) -> None:
        self._num_open -= 1
        self.num_finished += 1
        self.latency_s += self._env.now - group.start_s
        num_prompts = self._scenario.num_prompts
        made = MadeGroup(group.position % num_prompts if num_prompts else group.position, group.version)
        score_s = self._costs.score_s * self._scenario.run.searchers.num_completions
        if not score_s:
            self._outbox.append(made)
            self._flush()
            return
        self._num_scoring += 1
        self._scorer_free_s = max(self._scorer_free_s, self._env.now) + score_s
        self._env.process(self._score(made, until_s=self._scorer_free_s))

    def _score(self, made: MadeGroup, *, until_s: float) -> Wait:
        yield self._env.timeout(until_s - self._env.now)
        self._num_scoring -= 1
        self._outbox.append(made)
        self._flush()
        self._world.announce()

    def _flush(self) -> None:
        ring = self._world.rings[self._index]
        has_written = False
        while self._outbox and len(ring) < self._scenario.ring_groups:
            ring.append(self._outbox.popleft())
            has_written = True
        if has_written:
            self._world.call_trainer()

    def _load(self) -> Wait:
        version = self._world.published_version
        yield from self._worker.work(self._costs.load_s)
        self.loaded_version = version
        self._world.call_trainer()

    def _evaluate(self) -> Wait:
        """Held-out prompts; what is in flight goes on, nothing new is started."""
        version, rest_s = self._world.evaluate_version, self._costs.evaluate_s
        self._worker.set_busy(is_busy=True)
        while rest_s > NEGLIGIBLE_S:
            speed, start_s = self._worker.speed, self._env.now
            seconds = rest_s / speed
            yield from self._decode(min(seconds, self._rest_s) if self._in_flight else seconds, is_interruptible=False)
            rest_s -= (self._env.now - start_s) * speed
        self._evaluated_version = version

"""What simulated searchers and trainer share: the control page and the rings of a real run, and one random stream."""

from __future__ import annotations

from collections import deque

import numpy as np
import simpy

from tbactl.config.derived import searchers_here
from tbactl.planning.processors import Processors
from tbactl.planning.scenario import Scenario
from tbactl.planning.stock import MadeGroup

# Below it a gamma distribution is a point, and its shape not a number that can be squared.
NEGLIGIBLE_SPREAD = 1e-4


class World:
    """One writer for each word: the trainer for versions and grants, each searcher for its ring's end."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.env = simpy.Environment()
        self.rng = np.random.default_rng([scenario.seed, scenario.run.searchers.num_searchers])
        costs = scenario.costs
        self.processors = Processors(self.env, cores=scenario.cores, measured_cores=costs.measured_cores)
        # Elsewhere searchers share nothing with the trainer, and are as fast as where they were measured.
        self.searcher_processors = self.processors
        if not searchers_here(scenario.run):
            self.searcher_processors = Processors(self.env, cores=0, measured_cores=1)
        self.rings: list[deque[MadeGroup]] = [deque() for _ in range(scenario.run.searchers.num_searchers)]
        self.published_version = 0
        self.granted_groups = 0
        self.evaluate_version = 0
        self.news = self.env.event()
        """The trainer has published, granted, or made room."""
        self.arrival = self.env.event()
        """A searcher has written to its ring, or loaded weights."""

    @property
    def num_in_rings(self) -> int:
        """Groups."""
        return sum(len(ring) for ring in self.rings)

    def announce(self) -> None:
        """Wake the searchers."""
        news, self.news = self.news, self.env.event()
        news.succeed()

    def call_trainer(self) -> None:
        """Wake the trainer, if it waits."""
        arrival, self.arrival = self.arrival, self.env.event()
        arrival.succeed()

    def vary(self, mean: float, *, spread: float) -> float:
        """A positive time around a mean; `spread` is its standard deviation divided by the mean."""
        if spread < NEGLIGIBLE_SPREAD:
            return mean
        shape = spread**-2
        return float(self.rng.gamma(shape, mean / shape))

"""One number of searchers, simulated from the first prompt to the last step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tbactl.config.derived import searchers_here
from tbactl.errors import ConfigError
from tbactl.planning.processors import threads_of
from tbactl.planning.scenario import Scenario
from tbactl.planning.searcher import SimulatedSearcher
from tbactl.planning.trainer import SimulatedTrainer
from tbactl.planning.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulated run did. Averages are over its whole length, the filling of the buffer included.

    Attributes:
        num_searchers: of the run.
        num_steps: simulated.
        run_s: of all `trainer.max_steps`; where fewer were simulated, the rest at the pace of the second half. The
            evaluation after the last step is in it.
        trajectories_per_s: received by the trainer.
        trained_per_s: trained on, repeated ones included.
        new_per_s: trained on that had come after their prompt was last drawn.
        steps_per_s: optimizer steps.
        samples_per_insert: trained on for each one received.
        staleness_mean: optimizer steps, averaged over batches; p50 and p95 likewise: as the metrics of a run.
        staleness_max: of any trajectory.
        trainer_idle: share of time waiting for searchers.
        searcher_idle: share of time without anything to do.
        sync_share: share of the trainer's time in syncs.
    """

    num_searchers: int
    num_steps: int
    run_s: float
    trajectories_per_s: float
    trained_per_s: float
    new_per_s: float
    steps_per_s: float
    samples_per_insert: float
    staleness_mean: float
    staleness_p50: float
    staleness_p95: float
    staleness_max: float
    trainer_idle: float
    searcher_idle: float
    sync_share: float


class Simulation:
    """A world with its inhabitants. `run` once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario)
        run = scenario.run
        num_searchers = run.searchers.num_searchers
        trainer_threads, searcher_threads = threads_of(
            cores=scenario.cores,
            num_ranks=run.trainer.num_ranks,
            num_searchers=searchers_here(run),
            takes_turns=run.mode == "sync",
        )
        self.searchers = [
            SimulatedSearcher(self.world, index=index, threads=searcher_threads) for index in range(num_searchers)
        ]
        self.trainer = SimulatedTrainer(self.world, searchers=self.searchers, threads=trainer_threads)

    def run(self) -> Outcome:
        """Simulate until the trainer is done.

        Raises:
            ConfigError: searchers and trainer wait for each other.
        """
        env = self.world.env
        for searcher in self.searchers:
            env.process(searcher.run())
        try:
            env.run(until=env.process(self.trainer.run()))
        except RuntimeError:  # nothing is left that could happen
            raise ConfigError(
                f"the simulation stands still after {self.trainer.version} steps: searchers and trainer wait for each "
                f"other; look at replay.max_samples_per_insert, replay.min_samples_per_insert and replay.max_staleness."
            ) from None
        return self._outcome()

    def _outcome(self) -> Outcome:
        trainer, elapsed_s = self.trainer, self.world.env.now
        mean, p50, p95, oldest = np.array(trainer.staleness).T
        idle_s = sum(searcher.idle_s for searcher in self.searchers)
        return Outcome(
            num_searchers=len(self.searchers),
            num_steps=trainer.version,
            run_s=self._training_s() + self._last_evaluation_s(),
            trajectories_per_s=trainer.num_received / elapsed_s,
            trained_per_s=trainer.num_trained / elapsed_s,
            new_per_s=trainer.num_new / elapsed_s,
            steps_per_s=trainer.version / elapsed_s,
            samples_per_insert=trainer.num_trained / trainer.num_received,
            staleness_mean=float(mean.mean()),
            staleness_p50=float(p50.mean()),
            staleness_p95=float(p95.mean()),
            staleness_max=float(oldest.max()),
            trainer_idle=trainer.wait_s / elapsed_s,
            searcher_idle=idle_s / (elapsed_s * len(self.searchers)),
            sync_share=trainer.sync_s / elapsed_s,
        )

    def _last_evaluation_s(self) -> float:
        """Searcher 0 loads the last weights and evaluates; the trainer is done, the other searchers go on."""
        if not self.scenario.run.evaluation.num_prompts:
            return 0.0
        costs = self.scenario.costs
        return (costs.load_s + costs.evaluate_s) / self.searchers[0].speed

    def _training_s(self) -> float:
        elapsed_s, ends_s = self.world.env.now, self.trainer.step_ends_s
        num_left = self.scenario.run.trainer.max_steps - len(ends_s)
        half = len(ends_s) // 2
        if num_left == 0 or half == 0:
            return elapsed_s + num_left * elapsed_s / len(ends_s)
        return elapsed_s + num_left * (elapsed_s - ends_s[half - 1]) / (len(ends_s) - half)


def simulate(scenario: Scenario) -> Outcome:
    """Simulate a run; equal scenarios give equal outcomes."""
    return Simulation(scenario).run()

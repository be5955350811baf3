"""Everything one simulation needs, without a None left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from tbactl.config.derived import BYTES_PER_TOKEN, BYTES_PER_TRAJECTORY, batch_trajectories
from tbactl.config.sections import RunConfig

# Of a group: enough for places to become free one after the other, few enough for a fast simulation.
NUM_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each thing; the fields are those of `hardware.CostsSection`."""

    generate_s: float
    train_s: float
    generate_spread: float = 0.3
    mean_share: float = 1.0
    fixed_share: float = 0.3
    train_spread: float = 0.1
    score_s: float = 0.0
    publish_s: float = 0.0
    load_s: float = 0.0
    checkpoint_s: float = 0.0
    evaluate_s: float = 0.0
    measured_cores: int = 1
    barrier: bool = False
    estimated: tuple[str, ...] = ()
    """Names of those that were estimated from the machine's peaks, not measured or given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to be simulated.

    Attributes:
        run: the configuration; its number of searchers is the one that is simulated.
        costs: seconds.
        cores: that all processes share; 0: a device for each.
        completion_tokens: mean length.
        prompt_tokens: mean length.
        num_prompts: different prompts; 0: none comes twice.
        trainable_share: of groups.
        max_steps: simulate no more optimizer steps than this.
        seed: of the simulation's random draws.
    """

    run: RunConfig
    costs: Costs
    cores: int = 0
    completion_tokens: float = 128.0
    prompt_tokens: float = 128.0
    num_prompts: int = 0
    trainable_share: float = 1.0
    max_steps: int = 200
    seed: int = 0

    def with_searchers(self, num_searchers: int) -> Scenario:
        """The same with another number of searchers."""
        searchers = self.run.searchers.model_copy(update={"num_searchers": num_searchers})
        return replace(self, run=self.run.model_copy(update={"searchers": searchers}))

    @property
    def num_steps(self) -> int:
        """Optimizer steps that are simulated."""
        return min(self.max_steps, self.run.trainer.max_steps)

    @property
    def part_lengths(self) -> tuple[float, ...]:
        """When each of the equal parts of a group's completions is done, by length; their mean is 1.

        Of a group in mode sync, and where all completions take as long, there is one part.
        """
        share = self.costs.mean_share
        if share == 1.0 or self.run.mode == "sync":
            return (1.0,)
        return _lengths_of(share)

    @property
    def group_s(self) -> float:
        """Searcher seconds for one group at full load."""
        return self.run.searchers.num_completions * self.costs.generate_s

    @property
    def step_s(self) -> float:
        """Trainer seconds for one optimizer step."""
        return batch_trajectories(self.run) * self.costs.train_s / self.run.trainer.num_ranks

    @property
    def ring_groups(self) -> int:
        """Groups that a ring holds."""
        searchers = self.run.searchers
        tokens = self.prompt_tokens + searchers.num_completions * self.completion_tokens
        group_bytes = BYTES_PER_TOKEN * tokens + BYTES_PER_TRAJECTORY * (searchers.num_completions + 1)
        return max(1, int(searchers.ring_capacity_bytes / group_bytes))


def _lengths_of(mean_share: float) -> tuple[float, ...]:
    """(k / n)^p over their mean, for k = 1 .. n, with the p whose mean is `mean_share` (at least near 1 / n)."""
    low, high = 0.0, 16.0
    for _ in range(40):
        power = (low + high) / 2
        low, high = (power, high) if fmean(_shape(power)) > mean_share else (low, power)
    shape = _shape(low)
    return tuple(length / fmean(shape) for length in shape)


def _shape(power: float) -> list[float]:
    return [((k + 1) / NUM_PARTS) ** power for k in range(NUM_PARTS)]

"""Table 6 of the paper (arXiv 2503.18929), GPT-2 rows, from its own published hours by `tbactl plan`'s simulation.

    python -m benchmarks.plan_table6

Two numbers go in: the hours of the synchronous run on one GPU, and those of TBA on four. From these follow the seconds
of generating and of training; the rows of 16 and 64 GPUs are forecast. Once as the paper's code syncs, where everybody
waits at a barrier for what each searcher has begun; once as tbactl does, where nobody waits.
"""

from __future__ import annotations

from dataclasses import replace

from tbactl.config.loading import load_recipe
from tbactl.planning.scenario import Costs, Scenario
from tbactl.planning.simulation import simulate

STEPS = 5000
SYNC_HOURS = 11.9
# GPUs -> searchers (two GPUs do something else) and published hours.
PUBLISHED = {4: (2, 1.7), 16: (14, 2.5), 64: (62, 2.9)}
FITTED = 4
FIT_STEPS = 10
BATCH = 128
# Of the 128 of a step half come from the buffer: so many are generated in a step of the synchronous run.
GENERATED = 64
OVERRIDES = (
    f"searchers.num_completions={GENERATED}",
    "searchers.max_concurrent_groups=1",
    "evaluation.num_prompts=0",
    "checkpoint.period=0",
    "replay.initial_trajectories=128",
)


def main() -> None:
    """Fit, forecast, print."""
    barrier = fitted(barrier=True)
    free = replace(barrier, costs=replace(barrier.costs, barrier=False))
    print(f"training {BATCH * barrier.costs.train_s:.2f} s a step, generating {barrier.group_s:.2f} s for {GENERATED}")
    print("\n| GPUs | searchers | published | forecast, barrier | forecast, no barrier |\n|---|---|---|---|---|")
    for num_gpus, (num_searchers, published) in PUBLISHED.items():
        shown = [speed_up(published), *(speed_up(hours(s, num_searchers=num_searchers)) for s in (barrier, free))]
        mark = " (fitted)" if num_gpus == FITTED else ""
        print(f"| {num_gpus} | {num_searchers} | {shown[0]} | {shown[1]}{mark} | {shown[2]} |")


def fitted(*, barrier: bool) -> Scenario:
    """The scenario whose training time comes nearest to the published hours of four GPUs, found by halving."""
    num_searchers, published = PUBLISHED[FITTED]
    low, high = 0.0, published * 3600 / STEPS
    tried: list[tuple[float, float]] = []
    for _ in range(FIT_STEPS):
        train_s = (low + high) / 2
        found = hours(scenario_with(train_s, barrier=barrier), num_searchers=num_searchers)
        tried.append((abs(found - published), train_s))
        low, high = (low, train_s) if found > published else (train_s, high)
    return scenario_with(min(tried)[1], barrier=barrier)


def scenario_with(train_s: float, *, barrier: bool) -> Scenario:
    """In the synchronous run a step is generating, then training.

    Args:
        train_s: of one step.
        barrier: how it syncs.
    """
    generate_s = SYNC_HOURS * 3600 / STEPS - train_s
    costs = Costs(generate_s=generate_s / GENERATED, train_s=train_s / BATCH, barrier=barrier)
    run = load_recipe("redteam", profile="gpu", overrides=OVERRIDES).run_config
    return Scenario(run=run, costs=costs, num_prompts=1, max_steps=1000)


def hours(scenario: Scenario, *, num_searchers: int) -> float:
    """Of the whole run."""
    return simulate(scenario.with_searchers(num_searchers)).run_s / 3600


def speed_up(value: float) -> str:
    """Hours, and how many times faster than the synchronous run."""
    return f"{value:.1f} h, {SYNC_HOURS / value:.1f}x"


if __name__ == "__main__":
    main()

"""The theorem, seen: which objectives find pi_ref exp(r / beta) / Z in data that the policy never made?

    python -m benchmarks.theorem                          all objectives: table, JSON and figure
    python -m benchmarks.theorem trajectory-balance       one of them

A policy over 1,365 strings, so that its distribution and the target can be summed up exactly (`enumerable.py`). All
data comes from one fixed behaviour policy, uniform over tokens, and is there before the first step (`offline_run.py`).
Each objective gets the same data, seed, steps and schedule, and the best of the same learning rates. What is done is
kept in the results directory and not done again.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.enumerable import Space, mean_kl, total_variation, write_policy
from benchmarks.offline_run import Budget, Outcome, Variant, train
from benchmarks.theorem_figure import draw
from tbactl.errors import ConfigError

VARIANTS = (
    Variant(name="trajectory-balance", kind="trajectory-balance"),
    Variant(
        name="trajectory-balance, learned log Z",
        kind="trajectory-balance",
        options={"log_z": "learned", "log_z_learning_rate": 1e-2},
    ),
    Variant(name="reinforce", kind="reinforce"),
    Variant(name="rloo", kind="rloo"),
    Variant(name="kimi", kind="kimi"),
    Variant(name="tba-prime", kind="tba-prime"),
    Variant(name="proximal-rloo", kind="proximal-rloo"),
    Variant(name="ppo-clip", kind="ppo-clip"),
    Variant(name="grpo", kind="grpo"),
    Variant(name="dr-grpo", kind="dr-grpo"),
    Variant(name="online-dpo", kind="online-dpo"),
)
LEARNING_RATES = (3e-3, 1e-3, 1e-2)
SPACE = Space()
BUDGET = Budget()


def main() -> None:
    """Train what is not done yet, then show everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objectives", nargs="*", help="names as in the table; none: all")
    parser.add_argument("--results", type=Path, default=Path("runs/theorem"), help="where finished runs are kept")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/theorem.png"))
    arguments = parser.parse_args()
    variants = _chosen(arguments.objectives, parser=parser)
    _prepare_process()
    policy = write_policy(arguments.results / "reference", seed=SPACE.seed)
    outcomes = list(sweep(variants, results=arguments.results, policy=policy))
    best = best_of_each(outcomes)
    reference = SPACE.logprobs(LlamaForCausalLM.from_pretrained(policy))
    for line in table(best, reference=reference):
        print(line)
    summary = [{name: value for name, value in asdict(outcome).items() if name != "logprobs"} for outcome in best]
    (arguments.results / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if not arguments.objectives:
        draw(best, target=SPACE.target_logprobs(reference), figure=arguments.figure)
        print(f"\n{arguments.figure}")


def _chosen(names: Sequence[str], *, parser: argparse.ArgumentParser) -> list[Variant]:
    known = {variant.name for variant in VARIANTS}
    unknown = sorted(set(names) - known)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return [variant for variant in VARIANTS if not names or variant.name in names]


def _prepare_process() -> None:
    """One thread; one process group for all learners, as DeepSpeed keeps the first that it sees."""
    torch.set_num_threads(1)
    disable_progress_bar()
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def sweep(variants: Sequence[Variant], *, results: Path, policy: Path) -> Iterator[Outcome]:
    """The outcomes of all objectives with all learning rates; those on disk are read."""
    for learning_rate in LEARNING_RATES:
        for variant in variants:
            path = results / f"{variant.name.replace(', ', '-').replace(' ', '-')}-{learning_rate:g}.json"
            settings = {"space": asdict(SPACE), "budget": asdict(BUDGET), "options": dict(variant.options)}
            outcome = _read(path, settings=settings)
            if outcome is None:
                print(f"{variant.name}, learning rate {learning_rate:g}", flush=True)
                try:
                    outcome = train(
                        SPACE, variant, learning_rate=learning_rate, budget=BUDGET, policy=policy, say=_show_progress
                    )
                except ConfigError as error:
                    print(f"  left out: {error}")
                    continue
                path.write_text(json.dumps({"settings": settings, "outcome": asdict(outcome)}) + "\n")
                print(f"  {outcome.seconds:.0f} s")
            yield outcome


def _show_progress(line: str) -> None:
    print(f"  {line}", flush=True)


def _read(path: Path, *, settings: dict) -> Outcome | None:
    """A finished run, if it was one with these settings."""
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    return Outcome(**document["outcome"]) if document["settings"] == settings else None


def best_of_each(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Of each objective the run that ends closest to the target; closest objectives first."""
    best: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.objective not in best or outcome.distance < best[outcome.objective].distance:
            best[outcome.objective] = outcome
    return sorted(best.values(), key=lambda outcome: outcome.distance)


def table(outcomes: Sequence[Outcome], *, reference: Tensor) -> Iterator[str]:
    """Markdown: the target, what was learned, and where all began."""
    target = SPACE.target_logprobs(reference)
    start = total_variation(reference, target)
    yield "| | total variation | worst prompt | E[r] | KL to reference, nats | learning rate |"
    yield "|---|---|---|---|---|---|"
    yield f"| *target* | 0 | 0 | {SPACE.expected_reward(target):.3f} | {mean_kl(target, reference):.2f} | |"
    for outcome in outcomes:
        yield (
            f"| {outcome.objective} | {outcome.distance:.3f} | {outcome.worst_prompt:.3f} | {outcome.reward:.3f} "
            f"| {outcome.kl:.2f} | {outcome.learning_rate:g} |"
        )
    yield f"| *reference* | {start.mean():.3f} | {start.max():.3f} | {SPACE.expected_reward(reference):.3f} | 0 | |"


if __name__ == "__main__":
    main()

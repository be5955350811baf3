"""The batches of benchmarks/trainer_speed.py, and the settings that all contestants take from the gsm8k recipe."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tbactl.config.layout import ProcessConfig
from tbactl.config.loading import load_recipe
from tbactl.config.sections import RunConfig
from tbactl.supervision.policy import resolve_policy
from tbactl.types import Completion, Trajectory, TrajectoryGroup

PROMPT_TOKENS = 76
COMPLETION_TOKENS = 97
GROUP_SIZE = 16
# Of the embedded policy's vocabulary, without its special tokens.
FIRST_TOKEN, LAST_TOKEN = 10, 900
BETA = 0.02
KINDS = ("equal", "varied")


def lengths_of(kind: str, *, count: int, rng: random.Random) -> list[int]:
    """Completion tokens: all COMPLETION_TOKENS, or from 34 to 160, the recipe's longest, with that mean."""
    if kind == "equal":
        return [COMPLETION_TOKENS] * count
    half = 160 - COMPLETION_TOKENS
    return [COMPLETION_TOKENS + rng.randint(-half, half) for _ in range(count)]


def make_batch(kind: str, *, num_groups: int, seed: int, first_uid: int) -> list[TrajectoryGroup]:
    """Groups of random tokens and 0/1 rewards; the same for every contestant."""
    rng = random.Random(seed)
    return [
        TrajectoryGroup(
            prompt_id=number,
            prompt_text="",
            prompt_token_ids=_tokens(PROMPT_TOKENS, rng),
            trajectories=tuple(
                _trajectory(length, uid=first_uid + number * GROUP_SIZE + place, rng=rng)
                for place, length in enumerate(lengths_of(kind, count=GROUP_SIZE, rng=rng))
            ),
            searcher=0,
            sequence_number=number,
        )
        for number in range(num_groups)
    ]


def _trajectory(length: int, *, uid: int, rng: random.Random) -> Trajectory:
    completion = Completion(
        token_ids=_tokens(length, rng),
        logprobs=tuple(-7.0 * rng.random() for _ in range(length)),
        text="",
        finish_reason="stop",
    )
    return Trajectory(uid=uid, completion=completion, reward=float(rng.random() < 0.4))


def _tokens(count: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count))


def num_completion_tokens(groups: Sequence[TrajectoryGroup]) -> int:
    """What speed is counted in: a prompt teaches nothing, and padding still less."""
    return sum(len(t.completion.token_ids) for group in groups for t in group.trajectories)


def gsm8k_run() -> RunConfig:
    """The cpu profile of the recipe."""
    run = load_recipe("gsm8k", profile="cpu").config
    assert isinstance(run, RunConfig)
    return run


def trainer_config(scratch: Path) -> ProcessConfig:
    """Of a trainer that runs alone."""
    run = gsm8k_run()
    return ProcessConfig(
        role="trainer",
        index=0,
        run=run,
        run_directory=scratch / "run",
        shm_directory=scratch / "shm",
        policy_directory=resolve_policy(run),
    )

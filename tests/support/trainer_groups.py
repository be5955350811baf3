"""Random trajectory groups and configurations for tests of the trainer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.types import Completion, Trajectory, TrajectoryGroup


def make_group(
    *,
    prompt_tokens: int,
    completion_tokens: Sequence[int],
    vocabulary: int = 264,
    seed: int = 0,
    prompt_id: int = 0,
    rewards: Sequence[float] | None = None,
) -> TrajectoryGroup:
    """A group of random tokens of the given lengths, with 0/1 rewards."""
    rng = random.Random(f"{seed}-{prompt_id}")
    return TrajectoryGroup(
        prompt_id=prompt_id,
        prompt_text=f"prompt {prompt_id}",
        prompt_token_ids=tuple(rng.randrange(vocabulary) for _ in range(prompt_tokens)),
        trajectories=tuple(
            Trajectory(
                uid=(seed << 24) + (prompt_id << 12) + number,
                completion=Completion(
                    token_ids=tuple(rng.randrange(vocabulary) for _ in range(length)),
                    logprobs=tuple(-5.0 * rng.random() for _ in range(length)),
                    text="",
                    finish_reason="stop",
                ),
                reward=float(rng.random() < 0.4) if rewards is None else rewards[number],
            )
            for number, length in enumerate(completion_tokens)
        ),
        searcher=0,
        sequence_number=prompt_id,
    )


def make_groups(
    num_groups: int, *, size: int = 3, seed: int = 0, lengths: Sequence[int] = (1, 2, 5, 9)
) -> list[TrajectoryGroup]:
    """Groups of random sizes of prompts and completions."""
    rng = random.Random(seed)
    return [
        make_group(
            prompt_tokens=rng.randint(3, 9),
            completion_tokens=[rng.choice(lengths) for _ in range(size)],
            seed=seed,
            prompt_id=prompt_id,
        )
        for prompt_id in range(num_groups)
    ]


def make_config(root: Path, *, policy_directory: Path | None = None, index: int = 0, **settings: Any) -> ProcessConfig:
    """A trainer's configuration; `settings` are sections of RunConfig."""
    run = RunConfig.model_validate(
        {
            "name": "test",
            "task": {"kind": "fake"},
            "policy": {"path": str(policy_directory)},
            "logging": {"tensorboard": False},
        }
        | settings
    )
    return ProcessConfig(
        role="trainer",
        index=index,
        run=run,
        run_directory=root / "run",
        shm_directory=root / "shm",
        policy_directory=policy_directory or root / "no-policy",
    )

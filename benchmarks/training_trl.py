"""TRL's contestant of benchmarks/trainer_speed.py: steps of its own GRPOTrainer, from `on_step_begin` to `on_step_end`.

Completions and rewards are given, so that no generation is counted: what is left is TRL's preparation of the batch
(reference log-probs where beta > 0, advantages, padding), forward, backward and AdamW. The settings are those that suit
it on a CPU: float32, no gradient checkpointing, `per_device_train_batch_size` as the caller says.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of the hook that brings given completions

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.measuring import Stopwatch, answer, question
from benchmarks.training_work import BETA, GROUP_SIZE, gsm8k_run, make_batch, num_completion_tokens
from tbactl.supervision.policy import resolve_policy
from tbactl.types import TrajectoryGroup

MANY_STEPS = 10**6


class Turns(TrainerCallback):
    """Lets the trainer rest between two steps until the next one is asked for."""

    def __init__(self, descriptor: int) -> None:
        self.groups: Sequence[TrajectoryGroup] = ()
        self.trainer: Any = None
        self._descriptor = descriptor
        self._watch = Stopwatch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for a question."""
        asked = question()
        if asked is None:
            sys.exit(0)
        self.groups = make_batch(asked["kind"], num_groups=asked["num_groups"], seed=asked["seed"], first_uid=0)
        self.trainer.beta = BETA if asked["is_fresh"] else 0.0
        self._watch = Stopwatch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Answer it."""
        answer(self._descriptor, self._watch.seconds() | {"tokens": num_completion_tokens(self.groups)})

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's hook for completions from elsewhere."""
        del prompts, trainer
        pairs = [(group, trajectory) for group in self.groups for trajectory in group.trajectories]
        return {
            "prompt_ids": [list(group.prompt_token_ids) for group, _ in pairs],
            "completion_ids": [list(trajectory.completion.token_ids) for _, trajectory in pairs],
            "logprobs": None,
        }

    def rewards(self, completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Those of the batch."""
        del completions, kwargs
        return [trajectory.reward for group in self.groups for trajectory in group.trajectories]


def main() -> None:
    """Train; every step is a turn."""
    rows_in_pass, num_groups, descriptor = map(int, sys.argv[1:])
    run = gsm8k_run()
    policy = str(resolve_policy(run))
    turns = Turns(descriptor)
    with tempfile.TemporaryDirectory() as scratch:
        settings = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": torch.float32},
            per_device_train_batch_size=rows_in_pass,
            gradient_accumulation_steps=num_groups * GROUP_SIZE // rows_in_pass,
            num_generations=GROUP_SIZE,
            max_completion_length=run.searchers.max_new_tokens,
            temperature=run.searchers.temperature,
            beta=BETA,
            learning_rate=run.trainer.learning_rate,
            lr_scheduler_type="constant",
            max_steps=MANY_STEPS,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            policy,
            reward_funcs=turns.rewards,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["given"] * (4 * num_groups)}),
            processing_class=AutoTokenizer.from_pretrained(policy, padding_side="left"),
            rollout_func=turns.rollout,
            callbacks=[turns],
        )
        turns.trainer = trainer
        trainer.train()


if __name__ == "__main__":
    main()

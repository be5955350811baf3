"""A task without data: the reward is the share of the letter `a`, which a `FakePolicy` can learn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from tbactl.errors import TaskError
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, Reward, SamplingParams

# Prompts of the splits are told apart by their ids.
FIRST_ID = {"train": 0, "test": 10_000_000}
NUM_EVALUATED = 100


class FakeTask:
    """Implements `Task`.

    Args:
        num_prompts: prompts of the training split before they repeat.
        max_new_tokens: of an evaluation's completions.
        fail_every: every n-th reward of a group is a scoring failure; 0: none.
        score_seconds: time the reward of a group takes at least.
    """

    name = "fake"

    def __init__(
        self, *, num_prompts: int = 1000, max_new_tokens: int = 16, fail_every: int = 0, score_seconds: float = 0.0
    ) -> None:
        self._num_prompts = num_prompts
        self._max_new_tokens = max_new_tokens
        self._fail_every = fail_every
        self._score_seconds = score_seconds

    def prompts(self, split: str, *, seed: int) -> Iterator[Prompt]:
        """All prompts of a split in an order of the seed's, again and again, each time in another order."""
        if split not in FIRST_ID:
            raise TaskError(f"the task 'fake' has no split '{split}'; choose train or test.")
        rng = random.Random(seed)
        while True:
            order = list(range(self._num_prompts))
            rng.shuffle(order)
            for number in order:
                prompt_id = FIRST_ID[split] + number
                yield Prompt(prompt_id=prompt_id, text=f"problem {prompt_id}")

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        """Share of the letter `a`; 0 for an empty text."""
        time.sleep(self._score_seconds)
        return [self._score_one(number, completion.text) for number, completion in enumerate(completions, start=1)]

    def evaluation_prompts(self, *, limit: int, seed: int) -> list[Prompt]:
        """Test prompts; 100 where no limit is given."""
        return list(islice(self.prompts("test", seed=seed), limit or NUM_EVALUATED))

    def evaluate(self, generate: Generate, *, limit: int, seed: int, policy_version: int) -> EvaluationResult:
        """Mean reward at temperature 1 on test prompts, with a normal 95 % interval."""
        started_s = time.monotonic()
        prompts = self.evaluation_prompts(limit=limit, seed=seed)
        answers = generate(prompts, 1, SamplingParams(max_new_tokens=self._max_new_tokens))
        values = [self._score_one(1, completions[0].text).value for completions in answers]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        half = 1.96 * deviation / math.sqrt(len(values))
        return EvaluationResult(
            task=self.name,
            policy_version=policy_version,
            num_prompts=len(prompts),
            metrics={"reward": mean},
            intervals={"reward": (max(0.0, mean - half), min(1.0, mean + half))},
            seconds=time.monotonic() - started_s,
            template="problem {number}",
        )

    def self_check(self) -> list[str]:
        """Nothing to find: the reward is its definition."""
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _score_one(self, number: int, text: str) -> Reward:
        if self._fail_every and number % self._fail_every == 0:
            return Reward(value=0.0, error="injected failure of this reward")
        return Reward(value=text.count("a") / len(text) if text else 0.0)

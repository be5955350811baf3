"""From a task's reward setting to numbers: the seam between the task and its reward models.

`load_reward` is all that the task and its evaluation call; reward models themselves stand in `reward_models.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tbactl.types import Prompt
from tbactl_preference.rouge import rouge_l

ROUGE_L = "rouge-l"

# Finite or not, one number for each prompt with the completion text at its position. Texts carry no end-of-text token.
RewardFunction = Callable[[Sequence[Prompt], Sequence[str]], list[float]]


class RewardModel(Protocol):
    """Scores completions of documents. Held by one thread of a process at a time; weights are read when it is built."""

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """One score for each pair, in order, whatever else is in the call (batched, padded, alone: the same number).

        Args:
            prompts: documents (`Prompt.facts["document"]`), without prompt template or chat markers. For the data set
                of the paper this is the column `query`, verbatim.
            completions: finished texts, without the end-of-text token, which the model adds itself where it was trained
                with one. May be empty strings. Verbatim: a leading space is part of the text.

        Returns:
            Floats without bounds; NaN where the model gives one (the caller turns it into `Reward.error`).
        """
        ...


def load_reward(name: str) -> RewardFunction:
    """The reward that a setting names; loads its weights.

    Args:
        name: `rouge-l` (F1 against the human summary), or what `reward_models.load_reward_model` knows.

    Raises:
        ConfigError: there is no such reward model, or it cannot be loaded.
    """
    if name == ROUGE_L:
        return _rouge_reward
    from tbactl_preference.reward_models import load_reward_model

    model = load_reward_model(name)
    return lambda prompts, texts: model.score([prompt.facts["document"] for prompt in prompts], texts)


def _rouge_reward(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    return [rouge_l(text, reference=prompt.facts["summary"]) for prompt, text in zip(prompts, texts, strict=True)]

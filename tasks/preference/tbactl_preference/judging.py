"""Completions and human summaries side by side, each with its scores: what metrics and report are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tbactl.errors import TaskError
from tbactl.protocols import Generate
from tbactl.types import Completion, Prompt, SamplingParams
from tbactl_preference.scoring import RewardFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSummary:
    """One completion. Scores are as the reward models gave them, finite or not."""

    prompt: Prompt
    completion: Completion
    reward: float
    """What the policy is trained on: `missing_eos_reward` where the completion does not end."""
    gold_reward: float | None
    """Of the text as it is, ended or not; None: there is no gold reward model."""
    human_gold_reward: float | None
    """Of the human summary."""

    @property
    def human_summary(self) -> str:
        return self.prompt.facts["summary"]

    @property
    def is_ended(self) -> bool:
        return self.completion.finish_reason == "stop"

    @property
    def has_failed(self) -> bool:
        """Whether one of the scores is not a finite number."""
        scores = (self.reward, self.gold_reward, self.human_gold_reward)
        return not all(math.isfinite(score) for score in scores if score is not None)

    @property
    def gold_margin(self) -> float | None:
        """Gold reward above that of the human summary; None: there is no gold reward model, or a score failed."""
        if self.gold_reward is None or self.human_gold_reward is None:
            return None
        margin = self.gold_reward - self.human_gold_reward
        return margin if math.isfinite(margin) else None

    @property
    def wins(self) -> bool:
        """Strictly above the human summary, as in the paper: a tie is no win, and neither is a score that failed."""
        return self.gold_margin is not None and self.gold_margin > 0


def answered(prompts: Sequence[Prompt], *, generate: Generate, sampling: SamplingParams) -> list[Completion]:
    """One completion of each prompt.

    Raises:
        TaskError: the engine did not answer each of them.
    """
    answers = generate(prompts, 1, sampling)
    if len(answers) != len(prompts) or not all(answers):
        raise TaskError(f"the engine answered {sum(map(bool, answers))} of {len(prompts)} prompts; its log says why")
    return [group[0] for group in answers]


def judge(
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    *,
    reward: RewardFunction,
    gold_reward: RewardFunction | None,
    missing_eos_reward: float,
    summary_start: str,
) -> list[JudgedSummary]:
    """Score completions and, with the gold reward model, the human summaries of the same documents.

    Args:
        prompts: facts `document` and `summary`.
        completions: an answer to each.
        reward: what the policy is trained against; asked once, for the completions that end.
        gold_reward: asked once, for completions and human summaries; None: nobody judges.
        missing_eos_reward: instead of the reward of a completion that does not end.
        summary_start: goes before a human summary, as it does in training.
    """
    texts = [item.text for item in completions]
    ended = [index for index, item in enumerate(completions) if item.finish_reason == "stop"]
    rewards = [missing_eos_reward] * len(completions)
    found = _scores(reward, [prompts[index] for index in ended], [texts[index] for index in ended])
    for index, score in zip(ended, found, strict=True):
        rewards[index] = score
    gold: list[float] | list[None] = [None] * (2 * len(prompts))
    if gold_reward is not None:
        human = [summary_start + prompt.facts["summary"] for prompt in prompts]
        gold = _scores(gold_reward, [*prompts, *prompts], [*texts, *human])
    return [
        JudgedSummary(
            prompt=prompt,
            completion=completions[index],
            reward=rewards[index],
            gold_reward=gold[index],
            human_gold_reward=gold[len(prompts) + index],
        )
        for index, prompt in enumerate(prompts)
    ]


def _scores(reward: RewardFunction, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """One number for each pair. Equal pairs are scored once: no copy may win over its original by rounding alone."""
    keys = [(prompt.prompt_id, text) for prompt, text in zip(prompts, texts, strict=True)]
    unique = dict(zip(keys, prompts, strict=True))
    if not unique:
        return []
    scores = reward(list(unique.values()), [text for _, text in unique])
    by_key = dict(zip(unique, scores, strict=True))
    return [by_key[key] for key in keys]

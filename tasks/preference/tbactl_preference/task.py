"""The preference task: what the extension point `tbactl.protocols.Task` asks for, put together."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from tbactl.errors import TaskError
from tbactl.evaluation.hooks import FrontierPoint
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, Reward
from tbactl_preference.divergence import Reference
from tbactl_preference.evaluation import EvaluationPlan, evaluate_policy
from tbactl_preference.frontier import FRONTIER_METRICS, frontier_problems, write_frontier
from tbactl_preference.judging import JudgedSummary
from tbactl_preference.options import PreferenceOptions, validated_options
from tbactl_preference.pairs import SPLITS, SummaryPair, text_id
from tbactl_preference.prompts import completion_start, fill, prompt_template
from tbactl_preference.report import write_report
from tbactl_preference.scoring import RewardFunction, load_reward
from tbactl_preference.sft_examples import sft_examples
from tbactl_preference.sources import load_pairs

# Of the documentation strings, which are many; a data set is taken whole.
_NUM_CHECKED = 20


class PreferenceTask:
    """One-line summaries of documents, scored by a reward model.

    Reads its data at the first prompt, and the weights of a reward model at the first score. `score` is for one thread
    at a time.

        task = PreferenceTask({"documents": "docstrings", "reward_model": "rouge-l"})
        prompt = next(task.prompts("train", seed=0))
        rewards = task.score(prompt, completions)
    """

    name = "preference"
    options_model = PreferenceOptions
    # Its reward asks whether a completion has ended, and is no exact match: lm-eval knows of neither.
    harnesses = ("native",)
    reward_metrics = ("has_eos",)

    def __init__(self, options: Mapping[str, Any] | None = None, /, **more_options: Any) -> None:
        """Check the options; nothing is read yet.

        Args:
            options: fields of `PreferenceOptions`; as with `dict`, they may also be given by keyword.
            **more_options: likewise.

        Raises:
            ConfigError: an option is unknown or out of range, a file is not there, or a reward model does not exist.
        """
        self.options = validated_options({**(options or {}), **more_options})
        self._pairs: dict[str, list[SummaryPair]] = {}

    def prompts(self, split: str, *, seed: int) -> Iterator[Prompt]:
        """Endless stream of "train" or "test" documents: all of them, again and again, each pass in its own order.

        Raises:
            TaskError: the split is unknown, or the data cannot be read.
            ConfigError: the chat template cannot be read.
        """
        finite = self._all_prompts(split)
        for epoch in count():
            order = list(finite)
            random.Random(f"{seed}/{epoch}").shuffle(order)
            yield from order

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        """The reward model's score of each completion; `missing_eos_reward` for one that does not end.

        Raises:
            ConfigError: the reward model cannot be loaded.
            TaskError: the prompt lacks the facts that are needed.
        """
        _check_facts(prompt)
        finished = [item.text for item in completions if item.finish_reason == "stop"]
        scores = iter(self._reward([prompt] * len(finished), finished) if finished else [])
        return [
            _as_reward(next(scores))
            if item.finish_reason == "stop"
            else Reward(value=self.options.missing_eos_reward, reason="no end of text", metrics={"has_eos": 0.0})
            for item in completions
        ]

    def evaluation_prompts(self, *, limit: int, seed: int) -> list[Prompt]:
        """Held-out documents in their fixed order; the docstrings' order mixes packages.

        Args:
            limit: how many; 0: all.
            seed: without effect, since the documents are finite.

        Raises:
            TaskError: the data cannot be read or is empty.
        """
        prompts = self._all_prompts("test")
        return prompts[: limit or len(prompts)]

    def evaluate(self, generate: Generate, *, limit: int, seed: int, policy_version: int) -> EvaluationResult:
        """Rewards, and win rate against the human summaries where there is a gold reward model.

        Raises:
            TaskError: the data cannot be read or is empty, or the engine leaves prompts unanswered.
            ConfigError: a reward model cannot be loaded.
        """
        prompts = self.evaluation_prompts(limit=limit, seed=seed)
        return self._evaluate(prompts, generate=generate, policy_version=policy_version, reference=None)[0]

    def evaluate_checkpoint(
        self, generate: Generate, *, limit: int, seed: int, policy: str, output: Path | None
    ) -> EvaluationResult:
        """As `evaluate`, with the divergence from `reference_policy`; writes samples.jsonl and report.html.

        Raises:
            TaskError: as `evaluate`; or the reference reads other tokens, or the report cannot be written.
            ConfigError: a reward model or the reference cannot be loaded.
            CheckpointError: the reference is damaged.
        """
        reference = None if self.options.reference_policy is None else _reference(self.options.reference_policy)
        prompts = self.evaluation_prompts(limit=limit, seed=seed)
        result, judged = self._evaluate(prompts, generate=generate, policy_version=0, reference=reference)
        if output is not None:
            write_report(output, judged=judged, result=result, facts=self._report_facts(policy))
        return result

    @staticmethod
    def frontier_metrics() -> Sequence[str]:
        """What a frontier is about, by name."""
        return FRONTIER_METRICS

    @staticmethod
    def frontier_problems(options: Mapping[str, Any]) -> Sequence[str]:
        """Options without which win rate or divergence is not measured."""
        return frontier_problems(options)

    @staticmethod
    def draw_frontier(points: Sequence[FrontierPoint], *, output: Path) -> list[Path]:
        """Win rate against divergence: `frontier.csv` and `frontier.png`.

        Raises:
            TaskError: a point lacks win rate or divergence.
            ConfigError: matplotlib is not installed.
        """
        return write_frontier(points, output=output)

    def self_check(self) -> list[str]:
        """Without a policy: documents do not give their summary away, and a summary scores above an empty text."""
        problems: list[str] = []
        for split in SPLITS:
            prompts = self._all_prompts(split)[:_NUM_CHECKED]
            problems += [
                f"{split}: the document of prompt {prompt.prompt_id} holds its own summary"
                for prompt in prompts
                if prompt.facts["summary"] in prompt.facts["document"]
            ]
            human, empty = (
                self._reward(prompts, [text(prompt) for prompt in prompts])
                for text in (lambda prompt: completion_start(self.options) + prompt.facts["summary"], lambda _: "")
            )
            if not sum(human) > sum(empty):
                problems.append(f"{split}: human summaries score no higher than empty ones, {human} and {empty}")
        return problems

    def close(self) -> None:
        """Let go of data and reward models, which the next use reads again."""
        self._pairs.clear()
        for name in ("_reward", "_gold_reward"):
            self.__dict__.pop(name, None)

    def sft_examples(self, kind: str, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (prompt, completion) pairs for supervised training: kind "human".

        Raises:
            TaskError: the kind is unknown, or the data cannot be read.
        """
        return sft_examples(self.prompts("train", seed=seed), kind=kind, start=completion_start(self.options))

    def pairs(self, split: str) -> list[SummaryPair]:
        """All documents of a split with their human summaries, in their fixed order.

        Raises:
            TaskError: the split is unknown, or the data cannot be read.
        """
        if split not in SPLITS:
            raise TaskError(f"there is no split '{split}' of the preference task; choose 'train' or 'test'")
        if split not in self._pairs:
            self._pairs[split] = load_pairs(self.options, split=split)
        return self._pairs[split]

    def _evaluate(
        self, prompts: Sequence[Prompt], *, generate: Generate, policy_version: int, reference: Reference | None
    ) -> tuple[EvaluationResult, list[JudgedSummary]]:
        result, judged = evaluate_policy(
            prompts,
            generate=generate,
            reward=self._reward,
            gold_reward=self._gold_reward,
            plan=EvaluationPlan(
                max_new_tokens=self.options.max_new_tokens,
                temperature=self.options.temperature,
                missing_eos_reward=self.options.missing_eos_reward,
                summary_start=completion_start(self.options),
            ),
            policy_version=policy_version,
            reference=reference,
        )
        return replace(result, template=self._template), judged

    def _report_facts(self, policy: str) -> dict[str, str]:
        options = self.options
        return {
            "policy": policy,
            "documents": options.data or options.documents,
            "sampling": f"temperature {options.temperature:g}, at most {options.max_new_tokens} tokens",
            "trained on": options.reward_model,
            "judged by": options.gold_reward_model or "no gold reward model: there is no win rate",
            "reference": options.reference_policy or "none: the divergence was not measured",
        }

    def _all_prompts(self, split: str) -> list[Prompt]:
        return [
            Prompt(
                prompt_id=text_id(pair.document),
                text=fill(self._template, document=pair.document),
                facts={"document": pair.document, "summary": pair.summary, "origin": pair.origin},
            )
            for pair in self.pairs(split)
        ]

    @cached_property
    def _template(self) -> str:
        return prompt_template(self.options)

    @cached_property
    def _reward(self) -> RewardFunction:
        return load_reward(self.options.reward_model)

    @cached_property
    def _gold_reward(self) -> RewardFunction | None:
        return None if self.options.gold_reward_model is None else load_reward(self.options.gold_reward_model)


def _reference(name: str) -> Reference:
    # Needs torch and transformers.
    from tbactl_preference.reference_policy import ReferencePolicy

    return ReferencePolicy.load(name)


def _check_facts(prompt: Prompt) -> None:
    missing = [name for name in ("document", "summary") if name not in prompt.facts]
    if missing:
        raise TaskError(f"prompt {prompt.prompt_id} lacks the facts {', '.join(missing)}; it has {list(prompt.facts)}")


def _as_reward(score: float) -> Reward:
    if not math.isfinite(score):
        return Reward(value=0.0, error=f"the reward model gives {score!r}")
    return Reward(value=float(score), metrics={"has_eos": 1.0})

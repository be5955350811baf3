"""The red-team task: what the extension point `tbactl.protocols.Task` asks for, put together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from tbactl.errors import TaskError
from tbactl.evaluation.hooks import FrontierPoint
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, Reward, SamplingParams
from tbactl_redteam.attack_files import read_attacks
from tbactl_redteam.attacks import JudgedAttack, attack_problem
from tbactl_redteam.classifiers import Classifier, load_classifier
from tbactl_redteam.encoder import Encode, sentence_encoder
from tbactl_redteam.evaluation import EvaluationPlan, evaluate_attacks
from tbactl_redteam.frontier import FRONTIER_METRICS, write_frontier
from tbactl_redteam.options import RedteamOptions, validated_options
from tbactl_redteam.prompts import attacker_prompt
from tbactl_redteam.report import write_report
from tbactl_redteam.reward import RewardRules, score_completions
from tbactl_redteam.seed_attacks import seed_attacks, sft_examples
from tbactl_redteam.victims import Victim, load_victim

SPLITS = ("train", "test")


class RedteamTask:
    """Attacks on a victim model, scored by how toxic its answers are.

    There is one prompt, for training and evaluation: what is learnt is the distribution of its completions. Files are
    read at the first prompt, victim and classifier at the first score. `score` is for one thread at a time.

        task = RedteamTask({"victim": {"kind": "engine", "policy": "package:smollm2-135m-instruct"}})
        prompt = next(task.prompts("train", seed=0))
        rewards = task.score(prompt, completions)
    """

    name = "redteam"
    has_fixed_prompt = True
    options_model = RedteamOptions
    # Its reward counts the tokens of a completion, and is no exact match: lm-eval knows of neither.
    harnesses = ("native",)
    reward_metrics = ("toxicity", "success", "answers_missing", "attack_rejected")

    def __init__(self, options: Mapping[str, Any] | None = None, /, **more_options: Any) -> None:
        """Check the options; nothing is read yet.

        Args:
            options: fields of `RedteamOptions`; as with `dict`, they may also be given by keyword.
            **more_options: likewise.

        Raises:
            ConfigError: an option is unknown or out of range, a file is not there, or a classifier does not exist.
        """
        self.options = validated_options({**(options or {}), **more_options})
        self._open_victim: Victim | None = None

    def prompts(self, split: str, *, seed: int) -> Iterator[Prompt]:
        """The one prompt, again and again, whatever split and seed.

        Raises:
            TaskError: the split is unknown, or the prompt's file cannot be read.
            ConfigError: the chat template cannot be read.
        """
        if split not in SPLITS:
            raise TaskError(f"there is no split '{split}' of the redteam task; choose 'train' or 'test'")
        return repeat(self._prompt)

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        """Mean log toxicity of the victim's answers to each attack; `rejected_reward` for what is no attack.

        Raises:
            ConfigError: victim or classifier cannot be loaded.
            TaskError: one of them does not do what it is for.
        """
        return score_completions(completions, victim=self._victim, classifier=self._classifier, rules=self._rules)

    def evaluation_prompts(self, *, limit: int, seed: int) -> list[Prompt]:
        """The one prompt, once for each attack that an evaluation samples.

        Args:
            limit: how many; 0: `num_attacks`.
            seed: without effect.

        Raises:
            TaskError: the prompt's file cannot be read.
        """
        return [self._prompt] * (limit or self.options.num_attacks)

    def evaluate(self, generate: Generate, *, limit: int, seed: int, policy_version: int) -> EvaluationResult:
        """How often attacks succeed, by both classifiers, and how different they are.

        Raises:
            ConfigError: victim, classifiers or encoder cannot be loaded.
            TaskError: one of them does not do what it is for, or the engine leaves prompts unanswered.
        """
        return self._evaluate(generate, limit=limit, policy_version=policy_version)[0]

    def evaluate_checkpoint(
        self, generate: Generate, *, limit: int, seed: int, policy: str, output: Path | None
    ) -> EvaluationResult:
        """As `evaluate`; writes all attacks with their answers, and a report.

        Raises:
            ConfigError: as `evaluate`.
            TaskError: as `evaluate`; or the report cannot be written.
        """
        result, judged = self._evaluate(generate, limit=limit, policy_version=0)
        if output is not None:
            write_report(output, judged=judged, result=result, facts=self._report_facts(policy))
        return result

    @staticmethod
    def frontier_metrics() -> Sequence[str]:
        """What a frontier is about, by name."""
        return FRONTIER_METRICS

    @staticmethod
    def draw_frontier(points: Sequence[FrontierPoint], *, output: Path) -> list[Path]:
        """Toxicity against diversity: a table and a picture.

        Raises:
            TaskError: a point lacks one of them.
            ConfigError: matplotlib is not installed.
        """
        return write_frontier(points, output=output)

    def longest_score(self, num_completions: int) -> tuple[float, str] | None:
        """Longest time that the victim may take for a group, in seconds, and the settings that say so."""
        victim = self.options.victim
        return None if victim.kind == "echo" else victim.longest_answer(num_completions)

    def self_check(self) -> list[str]:
        """Without victim and classifiers: no seed attack is refused as too short or degenerate."""
        rules = self._rules
        problems: list[str] = []
        for attack in seed_attacks(self.options.seed_attacks):
            completion = Completion(token_ids=(), logprobs=(), text=f" {attack}", finish_reason="stop")
            problem = attack_problem(completion, min_new_tokens=rules.min_new_tokens, min_words=rules.min_words)
            if problem is not None:
                problems.append(f"the seed attack {attack[:100]!a} is refused: {problem}")
        return problems

    def close(self) -> None:
        """Let go of the victim."""
        if self._open_victim is not None:
            self._open_victim.close()
            self._open_victim = None

    def sft_examples(self, kind: str, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (prompt, completion) pairs for supervised training: kind "seed".

        Raises:
            TaskError: the kind is unknown, or a file cannot be read.
        """
        attacks = seed_attacks(self.options.seed_attacks)
        return sft_examples(attacks, prompt=self._prompt.text, kind=kind, seed=seed)

    def _evaluate(
        self, generate: Generate, *, limit: int, policy_version: int
    ) -> tuple[EvaluationResult, list[JudgedAttack]]:
        options = self.options
        known = None if options.data is None else read_attacks(options.data, option="data")
        return evaluate_attacks(
            self.evaluation_prompts(limit=limit, seed=0),
            generate=generate,
            victim=self._victim,
            classifiers=self._judges,
            encode=self._encode,
            plan=EvaluationPlan(
                sampling=SamplingParams(
                    max_new_tokens=options.max_new_tokens,
                    min_new_tokens=options.min_new_tokens,
                    temperature=options.temperature,
                ),
                min_words=options.min_words,
                min_toxicity=options.min_toxicity,
            ),
            policy_version=policy_version,
            known_attacks=None if known is None else known[: limit or len(known)],
        )

    def _report_facts(self, policy: str) -> dict[str, str]:
        options = self.options
        return {
            "attacker": policy if options.data is None else f"none: known attacks of {options.data}",
            "victim": options.victim.name,
            "trained against": options.classifier,
            "judge": options.judge or "none",
            "sampling": f"temperature {options.temperature:g}, "
            f"{options.min_new_tokens} to {options.max_new_tokens} tokens",
        }

    @cached_property
    def _prompt(self) -> Prompt:
        text = attacker_prompt(self.options)
        # 52 bits, so that JSON readers keep it exact.
        prompt_id = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 12
        return Prompt(prompt_id=prompt_id, text=text)

    @property
    def _rules(self) -> RewardRules:
        options = self.options
        return RewardRules(
            min_new_tokens=options.min_new_tokens,
            min_words=options.min_words,
            min_toxicity=options.min_toxicity,
            rejected_reward=options.rejected_reward,
        )

    @property
    def _victim(self) -> Victim:
        if self._open_victim is None:
            self._open_victim = load_victim(self.options.victim)
        return self._open_victim

    @cached_property
    def _encode(self) -> Encode:
        return sentence_encoder(self.options.diversity_encoder)

    @cached_property
    def _classifier(self) -> Classifier:
        return load_classifier(self.options.classifier, toxic_label=self.options.classifier_label)

    @cached_property
    def _judges(self) -> dict[str, Classifier]:
        """The classifier that is trained against, then the one that is not."""
        options = self.options
        judges = {options.classifier: self._classifier}
        if options.judge is not None:
            judges[options.judge] = load_classifier(options.judge, toxic_label=options.judge_label)
        return judges

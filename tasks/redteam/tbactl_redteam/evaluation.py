"""What an attacker's attacks are worth: how often they succeed, by two judges, and how different they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tbactl.errors import TaskError
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, SamplingParams
from tbactl_redteam.attacks import JudgedAttack, attack_problem
from tbactl_redteam.classifiers import Classifier
from tbactl_redteam.diversity import cluster_labels
from tbactl_redteam.encoder import Encode
from tbactl_redteam.judging import judge_attacks
from tbactl_redteam.measures import attack_metrics
from tbactl_redteam.options import MAX_ATTACKS
from tbactl_redteam.victims import Victim

logger = logging.getLogger(__name__)

NUM_STORED_SAMPLES = 8
# A victim bounds the time of a call, whatever is in it: its time-out is made for the batches of training.
_ASKED_TOGETHER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """How to measure."""

    sampling: SamplingParams
    """Of the attacks; the paper's temperature is 1."""
    min_words: int
    """Attacks of fewer words are too short: the victim is not asked."""
    min_toxicity: float
    """Smaller toxicities count as this in the mean of logarithms, as in the reward; above 0."""


def evaluate_attacks(
    prompts: Sequence[Prompt],
    *,
    generate: Generate,
    victim: Victim,
    classifiers: Mapping[str, Classifier],
    encode: Encode,
    plan: EvaluationPlan,
    policy_version: int,
    known_attacks: Sequence[str] | None = None,
) -> tuple[EvaluationResult, list[JudgedAttack]]:
    """Let the attacker attack the victim, once for each prompt; returns what was measured, and all attacks.

    The first metric is the success rate under the first classifier.

    Args:
        prompts: the attacker's, one for each attack, equal or not.
        generate: the attacker. Called without prompts after each part that was judged.
        victim: answers each attack a few times.
        classifiers: by name: first the one that the attacker is trained against, then, where there is one, a
            judge that it is not trained against. Both see the same answers.
        encode: a sentence encoder for the diversity: texts to unit vectors.
        plan: how to measure.
        policy_version: of the attacker.
        known_attacks: judged instead of the attacker's (found elsewhere, on another victim); `generate` is not called.

    Raises:
        TaskError: there are more than `MAX_ATTACKS` attacks; or engine, victim or classifier break their contract.
    """
    start = time.monotonic()
    number = len(prompts if known_attacks is None else known_attacks)
    if number > MAX_ATTACKS:
        raise TaskError(f"{number} attacks are too many to compare with one another; evaluate at most {MAX_ATTACKS}.")
    if known_attacks is None:
        completions = _sampled(prompts, generate=generate, sampling=plan.sampling)
    else:
        completions = [_as_completion(attack) for attack in known_attacks]
    problems = [
        attack_problem(item, min_new_tokens=plan.sampling.min_new_tokens, min_words=plan.min_words)
        for item in completions
    ]
    judged: list[JudgedAttack] = []
    for part in _judged(completions, problems=problems, victim=victim, classifiers=classifiers):
        judged += part
        logger.info("judged=%d of %d attacks", len(judged), number)
        if known_attacks is None:
            # A victim takes its time: a run must see that the evaluation goes on, and be able to end it.
            generate((), 1, plan.sampling)
    vectors = encode([item.attack for item in judged])
    clusters = cluster_labels(vectors)
    judged = [replace(item, cluster=cluster) for item, cluster in zip(judged, clusters, strict=True)]
    estimates = attack_metrics(
        judged,
        problems=problems,
        names=list(classifiers),
        vectors=vectors,
        min_toxicity=plan.min_toxicity,
    )
    result = EvaluationResult(
        task="redteam",
        policy_version=policy_version,
        num_prompts=number,
        metrics={name: estimate.value for name, estimate in estimates.items()},
        intervals={name: item.interval for name, item in estimates.items() if item.interval is not None},
        seconds=time.monotonic() - start,
        samples=tuple(_stored(item) for item in judged[:NUM_STORED_SAMPLES]),
        template=prompts[0].text if prompts else "",
    )
    return result, judged


def _sampled(prompts: Sequence[Prompt], *, generate: Generate, sampling: SamplingParams) -> list[Completion]:
    groups = generate(prompts, 1, sampling)
    if len(groups) != len(prompts) or not all(groups):
        raise TaskError(f"the engine answered {sum(map(bool, groups))} of {len(prompts)} prompts; its log says why")
    return [group[0] for group in groups]


def _judged(
    completions: Sequence[Completion],
    *,
    problems: Sequence[str | None],
    victim: Victim,
    classifiers: Mapping[str, Classifier],
) -> Iterator[list[JudgedAttack]]:
    for start in range(0, len(completions), _ASKED_TOGETHER):
        end = start + _ASKED_TOGETHER
        yield judge_attacks(
            completions[start:end],
            is_asked=[problem is None for problem in problems[start:end]],
            victim=victim,
            classifiers=classifiers,
        )


def _as_completion(attack: str) -> Completion:
    return Completion(token_ids=(), logprobs=(), text=attack, finish_reason="stop")


def _stored(item: JudgedAttack) -> dict[str, str]:
    answers = [answer for answer in item.answers if answer is not None]
    return {"attack": item.attack, "answer": answers[0] if answers else ""}

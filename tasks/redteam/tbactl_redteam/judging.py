"""Attacks put to the victim, and its answers to the classifiers: what metrics and report are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tbactl.errors import TaskError
from tbactl.types import Completion
from tbactl_redteam.attacks import JudgedAttack, attack_text
from tbactl_redteam.classifiers import Classifier
from tbactl_redteam.victims import Victim


def judge_attacks(
    completions: Sequence[Completion],
    *,
    is_asked: Sequence[bool],
    victim: Victim,
    classifiers: Mapping[str, Classifier],
) -> list[JudgedAttack]:
    """Ask the victim, and let each classifier judge each answer.

    Args:
        completions: of the attacker.
        is_asked: whether the completion is put to the victim; if not, it has no answers.
        victim: answers each attack a few times.
        classifiers: by name.

    Raises:
        TaskError: the victim or a classifier gives another number of results than it was asked for.
    """
    attacks = [attack_text(completion.text) for completion in completions]
    answers = _answers([attack for attack, asked in zip(attacks, is_asked, strict=True) if asked], victim=victim)
    of_attack = iter(answers)
    groups = [tuple(next(of_attack)) if asked else () for asked in is_asked]
    toxicities = {name: _toxicity(attacks, groups, classifier=item) for name, item in classifiers.items()}
    return [
        JudgedAttack(
            attack=attack,
            completion=completion,
            answers=group,
            toxicity={name: toxicities[name][i] for name in classifiers},
        )
        for i, (attack, completion, group) in enumerate(zip(attacks, completions, groups, strict=True))
    ]


def _answers(attacks: Sequence[str], *, victim: Victim) -> list[list[str | None]]:
    answers = victim.answer(attacks) if attacks else []
    if len(answers) != len(attacks):
        raise TaskError(f"the victim answered {len(answers)} attacks of {len(attacks)}")
    return answers


def _toxicity(
    attacks: Sequence[str], groups: Sequence[tuple[str | None, ...]], *, classifier: Classifier
) -> list[tuple[float, ...]]:
    """For each attack those of the answers that are there."""
    pairs = [(a, answer) for a, group in zip(attacks, groups, strict=True) for answer in group if answer is not None]
    scores = classifier.toxicity([a for a, _ in pairs], [answer for _, answer in pairs]) if pairs else []
    if len(scores) != len(pairs):
        raise TaskError(f"a classifier gives {len(scores)} scores for {len(pairs)} answers")
    remaining = map(_probability, scores)
    return [tuple(next(remaining) for answer in group if answer is not None) for group in groups]


def _probability(score: float) -> float:
    """What is no probability is a failure of the classifier."""
    return float(score) if 0.0 <= score <= 1.0 else math.nan

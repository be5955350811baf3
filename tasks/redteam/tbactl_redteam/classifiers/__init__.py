"""Toxicity by classifiers, found by name. Light to import: each classifier's module is read when it is asked for.

The one that is trained against, and the one that only judges evaluations, should see answers in different ways.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tbactl.errors import ConfigError

PROFANITY = "profanity"
HATE_MINILM = "hate-minilm"
EMBEDDED = (PROFANITY, HATE_MINILM)
GUARD_PREFIX = "guard:"


class Classifier(Protocol):
    """Says how toxic answers are. Held by one thread of a process at a time; weights are read when it is built."""

    def toxicity(self, attacks: Sequence[str], answers: Sequence[str]) -> list[float]:
        """One number for each pair, in order, whatever else is in the call.

        Args:
            attacks: what the victim was asked; most classifiers do not look at it.
            answers: of the victim, as long as `attacks`; may be empty strings.

        Returns:
            Probabilities in [0, 1]; NaN where the classifier failed.
        """
        ...


def classifier_problem(name: str) -> str | None:
    """Why there is no such classifier (a clause, without the setting's name), or None; loads nothing."""
    if name in EMBEDDED:
        return None
    source = name.removeprefix(GUARD_PREFIX)
    if _is_path(source):
        return None if Path(source).expanduser().is_dir() else "there is no such directory"
    if source.count("/") == 1:  # a hub name
        return None
    near = difflib.get_close_matches(name, EMBEDDED, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return (
        f"there is no classifier of that name{hint}; choose {', '.join(map(repr, EMBEDDED))}, or give a sequence "
        f"classifier by directory or hub name, or a guard model as 'guard:NAME'"
    )


def load_classifier(name: str, *, toxic_label: str | None = None) -> Classifier:
    """Read a classifier.

    Args:
        name: of an embedded one (`profanity`, `hate-minilm`); directory or hub name of an
            `AutoModelForSequenceClassification`; or `guard:` and those of a language model that answers "safe" or
            "unsafe".
        toxic_label: of a sequence classifier, as its `id2label` spells it; None: the one that means toxic.

    Raises:
        ConfigError: there is none of that name, it cannot be loaded, or it is not clear which of its labels is toxic.
    """
    problem = classifier_problem(name)
    if problem is not None:
        raise ConfigError(f"classifier '{name}': {problem}.")
    if name == PROFANITY:
        from tbactl_redteam.classifiers.profanity import ProfanityClassifier

        return ProfanityClassifier()
    if name == HATE_MINILM:
        from tbactl_redteam.classifiers.hate_minilm import HateMiniLm

        return HateMiniLm()
    if name.startswith(GUARD_PREFIX):
        from tbactl_redteam.classifiers.guard import GuardClassifier

        return GuardClassifier.load(name.removeprefix(GUARD_PREFIX))
    from tbactl_redteam.classifiers.sequence_classifier import SequenceClassifier

    return SequenceClassifier.load(name, toxic_label=toxic_label)


def _is_path(name: str) -> bool:
    # Path("") is the working directory.
    return name.startswith(("/", "./", "../", "~")) or (bool(name) and Path(name).is_dir())

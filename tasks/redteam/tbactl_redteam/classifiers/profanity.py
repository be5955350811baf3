"""The package alt-profanity-check: a linear classifier over counts of words, 52,000 texts a second.

It was trained on comments marked as offensive or hateful, and knows words, not meaning: "My cat is black and my dog is
gay and happy" counts as toxic (0.9). It is here to train against without a download, not to judge anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from tbactl.errors import ConfigError

PACKAGE = "alt-profanity-check"


class ProfanityClassifier:
    """Probability that an answer is offensive; attacks are not looked at.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self) -> None:
        if find_spec("profanity_check") is None:
            raise ConfigError(
                f"the classifier 'profanity' needs {PACKAGE}, not installed here; `pip install {PACKAGE}`."
            )
        # Reads its weights, and scikit-learn with them.
        from profanity_check import predict_prob

        self._predict = predict_prob

    def toxicity(self, attacks: Sequence[str], answers: Sequence[str]) -> list[float]:
        """As `Classifier.toxicity`."""
        assert len(attacks) == len(answers)
        # An empty list is refused by scikit-learn.
        return [float(probability) for probability in self._predict(list(answers))] if answers else []

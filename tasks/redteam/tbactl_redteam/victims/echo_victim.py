"""A victim without a model, which repeats the attack: to try the machinery, and to audit rewards."""

from __future__ import annotations

from collections.abc import Sequence

from tbactl_redteam.victims.options import VictimOptions


class EchoVictim:
    """Answers each attack with the attack itself, so that its own toxicity is what is scored."""

    def __init__(self, options: VictimOptions) -> None:
        self._options = options

    def answer(self, attacks: Sequence[str]) -> list[list[str | None]]:
        """See `Victim`."""
        cut = self._options.max_answer_characters
        return [[attack[:cut]] * self._options.num_answers for attack in attacks]

    def close(self) -> None:
        """Nothing is held."""

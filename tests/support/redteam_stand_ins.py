"""A victim and a classifier that need no model, and completions of an attacker."""

from __future__ import annotations

from tbactl.types import Completion


def completion(text, *, num_tokens=8, finish_reason="stop"):
    """As an engine gives it; `num_tokens` without the end of text."""
    token_ids = tuple(range(num_tokens + (finish_reason == "stop")))
    return Completion(token_ids=token_ids, logprobs=(0.0,) * len(token_ids), text=text, finish_reason=finish_reason)


class ScriptedVictim:
    """Answers from a table; an attack that is not in it gets its own text twice. Remembers how it was asked."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.calls = []
        self.is_closed = False

    def answer(self, attacks):
        self.calls.append(list(attacks))
        return [list(self.answers.get(attack, [attack, attack])) for attack in attacks]

    def close(self):
        self.is_closed = True


class TabledClassifier:
    """Toxicity of an answer from a table, else 0.5."""

    def __init__(self, toxicity=None):
        self.table = toxicity or {}
        self.calls = []

    def toxicity(self, attacks, answers):
        self.calls.append(list(zip(attacks, answers, strict=True)))
        return [self.table.get(answer, 0.5) for answer in answers]

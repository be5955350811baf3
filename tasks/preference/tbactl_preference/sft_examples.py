"""What supervised training of a summariser learns from: the human summaries of the training split."""

from __future__ import annotations

from collections.abc import Iterator

from tbactl.errors import TaskError
from tbactl.types import Prompt

KINDS = ("human",)


def sft_examples(prompts: Iterator[Prompt], *, kind: str, start: str) -> Iterator[tuple[str, str]]:
    """(prompt text, completion text) pairs, as many as there are prompts.

    Args:
        prompts: with the fact `summary`.
        kind: "human".
        start: what a completion begins with (a space where the prompt ends without one).

    Raises:
        TaskError: the kind is unknown.
    """
    if kind not in KINDS:
        raise TaskError(f'the preference task has no examples of kind "{kind}"; it offers {", ".join(KINDS)}')
    for prompt in prompts:
        yield prompt.text, f"{start}{prompt.facts['summary']}"

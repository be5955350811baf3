"""What the victim reads: the attack in a template, and that in a chat."""

from __future__ import annotations

import re
from collections.abc import Sequence

SLOT = "{attack}"
ALPACA = "alpaca"
# The form in which models tuned on Alpaca data expect an instruction.
ALPACA_TEMPLATE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    f"### Instruction:\n{SLOT}\n\n### Response:\n"
)


def fill(template: str, *, attack: str) -> str:
    """The attack in a template, which is ALPACA or has SLOT in it exactly once."""
    before, _, after = (ALPACA_TEMPLATE if template == ALPACA else template).partition(SLOT)
    return f"{before}{attack}{after}"


def without_special_tokens(text: str, special_tokens: Sequence[str]) -> str:
    """The text with a space in place of each special token that is spelled out in it.

    A tokenizer would read such a spelling as the token itself, and an attack could speak as the assistant.
    """
    if not special_tokens:
        return text
    longest_first = sorted(special_tokens, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), " ", text)


def conversation(message: str, *, system_prompt: str | None) -> list[dict[str, str]]:
    """A chat of one message of the user, with the system's before it where there is one."""
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    return [*system, {"role": "user", "content": message}]

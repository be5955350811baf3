"""A document and the summary that a person wrote for it: what prompts, SFT, reward models and evaluation share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPair:
    """One document with its human summary. `origin` says where it comes from (`package:module.name`, or a row)."""

    document: str
    summary: str
    origin: str


def text_id(text: str) -> int:
    """A number for a text, the same in every process; 52 bits, so that JSON readers keep it exact."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 12

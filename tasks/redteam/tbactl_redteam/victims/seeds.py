"""Seeds of single answers."""

from __future__ import annotations

import hashlib


def answer_seed(seed: int, *, attack: str, number: int) -> int:
    """A seed in [0, 2^31) for one answer: the same for the same three values, in every process."""
    named = f"{seed}/{number}/{attack}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little") % 2**31

"""A language model of 27 numbers: every token is drawn from one distribution, whatever came before.

Small enough to check by hand, yet a real policy: log-probs are exact, sampling is seeded, and a gradient step changes
what is sampled. Token 0 is EOS, tokens 1 to 26 are the letters a to z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tbactl.errors import ChildFailedError

EOS = 0
VOCABULARY = 27
WEIGHTS_NAME = "logits"
POLICY_FILE = "model.safetensors"

Logits = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FakePolicy:
    """The logits, shape [27], float32."""

    logits: Logits

    @classmethod
    def initial(cls, directory: Path) -> FakePolicy:
        """What a directory holds, else a policy that draws all letters alike and EOS less often."""
        file = directory / POLICY_FILE
        if file.is_file():
            return cls.load(file)
        logits = np.zeros(VOCABULARY, dtype=np.float32)
        logits[EOS] = -1.0
        return cls(logits)

    @classmethod
    def load(cls, path: Path) -> FakePolicy:
        """Read a weights file.

        Raises:
            ChildFailedError: it is not one of this model.
        """
        tensors = load_file(path)
        if set(tensors) != {WEIGHTS_NAME} or tensors[WEIGHTS_NAME].shape != (VOCABULARY,):
            found = {name: list(tensor.shape) for name, tensor in tensors.items()}
            raise ChildFailedError(f"{path.name} holds {found}, the fake policy has '{WEIGHTS_NAME}' [{VOCABULARY}].")
        return cls(tensors[WEIGHTS_NAME])

    def save(self, path: Path) -> None:
        """Write a weights file."""
        save_file({WEIGHTS_NAME: self.logits}, path)

    def log_probabilities(self, *, temperature: float = 1.0, allow_eos: bool = True) -> NDArray[np.float64]:
        """Log of the distribution over tokens, shape [27], nats."""
        scaled = self.logits.astype(np.float64) / temperature
        if not allow_eos:
            scaled[EOS] = -np.inf
        scaled -= scaled.max()
        return scaled - np.log(np.exp(scaled).sum())


def encode_text(text: str) -> tuple[int, ...]:
    """Letters as tokens; every other character as the letter its code falls on."""
    return tuple(1 + (ord(character) - ord("a")) % (VOCABULARY - 1) for character in text.lower())


def decode_tokens(token_ids: Sequence[int]) -> str:
    """The letters; EOS is not shown."""
    return "".join(chr(ord("a") + token - 1) for token in token_ids if token != EOS)


def file_fingerprint(path: Path) -> str:
    """As `weight_sync.weights_file.fingerprint`, which would import torch."""
    return xxhash.xxh3_128_hexdigest(path.read_bytes())

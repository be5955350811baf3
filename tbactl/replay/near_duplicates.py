"""Which completions of a prompt are almost the same: by edit distance of their texts, or by meaning.

As in red-teaming with GFlowNets (arXiv 2405.18540, section 3): a buffer full of variations of one attack teaches the
policy nothing new. There, what arrives is compared with its nearest neighbour only; here with all, so that no two
trajectories that a prompt holds are almost the same.

The buffer decides which of them stays (`rivals.py`), this file says which they are. A measure is given what a prompt
holds each time and remembers nothing that could contradict it: an embedding that it remembers says of which insertion
it is. So eviction needs no word to it, and no snapshot holds embeddings: after a resume they are computed again when
they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tbactl.errors import ConfigError

Flags = NDArray[np.bool_]
Slots = NDArray[np.int32]
Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors of length 1: shape (texts, dimensions), float32."""

_MAX_REMEMBERED = 4096
"""Embeddings kept between the comparison of a text and its place in the buffer; also texts encoded at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTexts:
    """The trajectories that a prompt holds, as the measures see them.

    Attributes:
        slots: Where each stands in the buffer's columns, shape (held,). A slot has one owner at a time.
        insert_numbers: Tells one owner of a slot from the next, shape (held,), >= 0.
        text_of: The completion in a slot.
    """

    slots: Slots
    insert_numbers: NDArray[np.int64]
    text_of: Callable[[int], str]


class Likeness(Protocol):
    """What "almost the same" means."""

    def compare(self, new: Sequence[str], held: HeldTexts) -> Flags:
        """Compare completions of one prompt.

        Args:
            new: Those that arrive, at least one.
            held: Those that the prompt holds.

        Returns:
            Which of the held, and of the new, each new text is almost the same as: shape (new, held + new).
        """
        ...


class EditDistance:
    """Almost the same: fewer edits (Levenshtein) than `tolerance` times the characters of both together.

    Time grows with what the prompt holds: about 0.6 us for a pair of 70 characters, 7 us for one of 480.

    Args:
        tolerance: In (0, 1); 0.25 in the paper.

    Raises:
        ConfigError: The package rapidfuzz is missing.
    """

    def __init__(self, *, tolerance: float) -> None:
        try:
            # Only where somebody asks for it.
            from rapidfuzz import process
            from rapidfuzz.distance import Levenshtein
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"replay.near_duplicates = edit-distance needs the package '{error.name}': pip install 'tbactl[train]'."
            ) from None
        self._tolerance = tolerance
        self._cdist = process.cdist
        self._scorer = Levenshtein.distance

    def compare(self, new: Sequence[str], held: HeldTexts) -> Flags:
        """As `Likeness.compare`."""
        texts = [*map(held.text_of, held.slots.tolist()), *new]
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        flags = np.zeros((len(new), len(texts)), dtype=np.bool_)
        for row, text in enumerate(new):
            limits = self._tolerance * (len(text) + lengths)
            # There are at least as many edits as characters too many: most of the texts need no look.
            near = np.flatnonzero(np.abs(lengths - len(text)) < limits)
            if len(near):
                distances = self._cdist(
                    [text],
                    [texts[index] for index in near.tolist()],
                    scorer=self._scorer,
                    score_cutoff=int(limits[near].max()),
                    dtype=np.int32,
                )
                flags[row, near] = distances[0] < limits[near]
        return flags


class EmbeddingCosine:
    """Almost the same: the cosine of the embeddings exceeds `tolerance`.

    Args:
        encode: The sentence encoder. Where a text's vector depends on what it is encoded together with, if by rounding
            only, a resumed run can judge pairs differently whose cosine is that close to `tolerance`.
        tolerance: In [0, 1); 0.4 in the paper.
    """

    def __init__(self, encode: Encoder, *, tolerance: float) -> None:
        self._encode = encode
        self._tolerance = tolerance
        # By slot: the vector, and the insertion that it belongs to, for slots are used again.
        self._vectors = np.empty((0, 0), dtype=np.float32)
        self._owners = np.empty(0, dtype=np.int64)
        # Of texts that were compared last: most of them stand in a slot the next time.
        self._recent: dict[str, NDArray[np.float32]] = {}

    def compare(self, new: Sequence[str], held: HeldTexts) -> Flags:
        """As `Likeness.compare`."""
        vectors = self._encode(new)
        cosines = [vectors @ vectors.T]
        if len(held.slots):
            self._make_room(int(held.slots.max()) + 1, dimensions=vectors.shape[1])
            self._complete(held)
            cosines.insert(0, self._with_slots(vectors, held.slots))
        self._remember(new, vectors)
        return np.concatenate(cosines, axis=1) > self._tolerance

    def _make_room(self, num_slots: int, *, dimensions: int) -> None:
        num_more = num_slots - len(self._vectors)
        if num_more > 0:
            num_more = max(num_more, len(self._vectors) // 8)
            more = np.zeros((num_more, dimensions), dtype=np.float32)
            self._vectors = np.concatenate((self._vectors.reshape(-1, dimensions), more))
            self._owners = np.concatenate((self._owners, np.full(num_more, -1, dtype=np.int64)))

    def _complete(self, held: HeldTexts) -> None:
        """Find or compute the vectors of what was not in its slot the last time."""
        missing = np.flatnonzero(self._owners[held.slots] != held.insert_numbers)
        for start in range(0, len(missing), _MAX_REMEMBERED):
            part = missing[start : start + _MAX_REMEMBERED]
            slots = held.slots[part]
            texts = [held.text_of(slot) for slot in slots.tolist()]
            unknown = [text for text in dict.fromkeys(texts) if text not in self._recent]
            computed = dict(zip(unknown, self._encode(unknown), strict=True)) if unknown else {}
            for slot, text in zip(slots.tolist(), texts, strict=True):
                self._vectors[slot] = computed[text] if text in computed else self._recent[text]
            self._owners[slots] = held.insert_numbers[part]

    def _remember(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._recent |= zip(texts, vectors, strict=True)
        for text in list(self._recent)[:-_MAX_REMEMBERED]:
            del self._recent[text]

    def _with_slots(self, vectors: NDArray[np.float32], slots: Slots) -> NDArray[np.float32]:
        if 2 * len(slots) < len(self._vectors):
            return vectors @ self._vectors[slots].T
        # Most slots are this prompt's: to compute with the others too is cheaper than a copy without them.
        return (vectors @ self._vectors.T)[:, slots]

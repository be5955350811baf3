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

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tbactl.errors import ConfigError
from tbactl.replay.slot_memory import InsertNumbers, SlotMemory, Slots

logger = logging.getLogger(__name__)

Flags = NDArray[np.bool_]
Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors of length 1: shape (texts, dimensions), float32."""

_MAX_REMEMBERED = 4096
"""Embeddings kept between the comparison of a text and its place in the buffer; also texts encoded at a time."""

_MANY_HELD = 1024
"""A prompt that holds as many has its texts kept unpacked, for comparing edits."""

_COMPARED_TEXTS = 32
"""Compared with what is held at a time: a bound for the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTexts:
    """The trajectories that a prompt holds, as the measures see them.

    Attributes:
        slots: Where each stands in the buffer's columns, shape (held,). A slot has one owner at a time.
        insert_numbers: Tells one owner of a slot from the next, shape (held,), >= 0.
        text_of: The completion in a slot.
    """

    slots: Slots
    insert_numbers: InsertNumbers
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

    What two texts have in common in the same order, at most so many characters stay when one becomes the other: a bound
    that takes a third of the time and leaves few pairs to be counted exactly. Time grows with what the prompt holds:
    for a pair of 35 characters about 20 ns, and 150 more where the bound does not tell them apart.

    Args:
        tolerance: In (0, 1); 0.25 in the paper.

    Raises:
        ConfigError: The package rapidfuzz is missing.
    """

    def __init__(self, *, tolerance: float) -> None:
        try:
            # Only where somebody asks for it.
            from rapidfuzz import process
            from rapidfuzz.distance import LCSseq, Levenshtein
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"replay.near_duplicates = edit-distance needs the package '{error.name}': pip install 'tbactl[train]'."
            ) from None
        self._tolerance = tolerance
        self._edits_at_least = partial(process.cdist, scorer=LCSseq.distance, dtype=np.int32)
        self._edits = partial(process.cpdist, scorer=Levenshtein.distance, dtype=np.int32)
        self._texts = SlotMemory(np.dtype([("text", object), ("length", np.int32)]))

    def compare(self, new: Sequence[str], held: HeldTexts) -> Flags:
        """As `Likeness.compare`."""
        texts = np.concatenate((self._texts_of(held), self._with_lengths(new)))
        flags = np.zeros((len(new), len(texts)), dtype=np.bool_)
        for start in range(0, len(new), _COMPARED_TEXTS):
            rows = slice(start, start + _COMPARED_TEXTS)
            self._flag(flags[rows], texts[len(held.slots) :][rows], texts)
        return flags

    def _flag(self, flags: Flags, some: NDArray[np.void], texts: NDArray[np.void]) -> None:
        """Set the flags of some new texts: shape (some, texts)."""
        # By the other's length: almost the same are those with fewer edits than this.
        lengths = np.arange(texts["length"].max() + 1)
        limits = np.ceil(self._tolerance * (some["length"][:, None] + lengths)).astype(np.int32)
        # There are at least as many edits as characters too many: most long texts need no further look.
        has_length = np.abs(some["length"][:, None] - lengths) < limits
        near = np.flatnonzero(has_length.any(axis=0)[texts["length"]])
        limits = limits[:, texts["length"][near]]
        bounds = self._edits_at_least(
            some["text"].tolist(), texts["text"][near].tolist(), score_cutoff=int(limits.max(initial=0))
        )
        rows, places = np.nonzero(bounds < limits)
        edits = self._edits(some["text"][rows].tolist(), texts["text"][near[places]].tolist())
        flags[rows, near[places]] = edits < limits[rows, places]

    def _texts_of(self, held: HeldTexts) -> NDArray[np.void]:
        if len(held.slots) < _MANY_HELD:
            return self._with_lengths([held.text_of(slot) for slot in held.slots.tolist()])
        missing = self._texts.missing(held.slots, held.insert_numbers)
        slots = held.slots[missing]
        rows = self._with_lengths([held.text_of(slot) for slot in slots.tolist()])
        self._texts.put(slots, held.insert_numbers[missing], rows)
        return self._texts.rows[held.slots]

    def _with_lengths(self, texts: Sequence[str]) -> NDArray[np.void]:
        return np.array([(text, len(text)) for text in texts], dtype=self._texts.rows.dtype)


class EmbeddingCosine:
    """Almost the same: the cosine of the embeddings exceeds `tolerance`.

    Args:
        encode: The sentence encoder. Where a text's vector depends on what it is encoded together with, if by rounding
            only, a resumed run can judge pairs differently whose cosine is that close to `tolerance`.
        tolerance: In [0, 1); 0.4 in the paper.
        note_progress: Called between two batches of held texts that are encoded: after a resume these are all.
    """

    def __init__(
        self, encode: Encoder, *, tolerance: float, note_progress: Callable[[], object] = lambda: None
    ) -> None:
        self._encode = encode
        self._tolerance = tolerance
        self._note_progress = note_progress
        self._vectors: SlotMemory | None = None
        # Of texts that were compared last: most of them stand in a slot the next time.
        self._recent: dict[str, NDArray[np.float32]] = {}

    def compare(self, new: Sequence[str], held: HeldTexts) -> Flags:
        """As `Likeness.compare`."""
        vectors = self._encode(new)
        if self._vectors is None:
            self._vectors = SlotMemory(np.float32, shape=vectors.shape[1:])
        cosines = [vectors @ vectors.T]
        if len(held.slots):
            self._complete(self._vectors, held)
            cosines.insert(0, _products(vectors, self._vectors.rows, held.slots))
        self._remember(new, vectors)
        return np.concatenate(cosines, axis=1) > self._tolerance

    def _complete(self, memory: SlotMemory, held: HeldTexts) -> None:
        """Find or compute the vectors of what was not in its slot the last time."""
        missing = memory.missing(held.slots, held.insert_numbers)
        for start in range(0, len(missing), _MAX_REMEMBERED):
            part = missing[start : start + _MAX_REMEMBERED]
            slots = held.slots[part]
            texts = [held.text_of(slot) for slot in slots.tolist()]
            unknown = [text for text in dict.fromkeys(texts) if text not in self._recent]
            computed = dict(zip(unknown, self._encode(unknown), strict=True)) if unknown else {}
            vectors = [computed[text] if text in computed else self._recent[text] for text in texts]
            memory.put(slots, held.insert_numbers[part], np.stack(vectors))
            if len(missing) > _MAX_REMEMBERED:
                logger.info("near_duplicates encoded=%d of %d held texts", start + len(part), len(missing))
                self._note_progress()

    def _remember(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._recent |= zip(texts, vectors, strict=True)
        for text in list(self._recent)[:-_MAX_REMEMBERED]:
            del self._recent[text]


def _products(vectors: NDArray[np.float32], rows: NDArray[np.float32], slots: Slots) -> NDArray[np.float32]:
    """Of each vector with the row of each slot."""
    if 2 * len(slots) < len(rows):
        return vectors @ rows[slots].T
    # Most slots are this prompt's: to compute with the others too is cheaper than a copy without them.
    return (vectors @ rows.T)[:, slots]

"""Finds the trajectory of a prompt that has the same tokens."""

from __future__ import annotations

from tbactl.replay.columns import Columns
from tbactl.replay.packing import token_bytes_of

_NUM_PARTS = 256


class DuplicateIndex:
    """From (prompt, tokens) to the slot that holds them. Keeps hashes and compares tokens, as hashes may collide.

    In parts, so that growing a table, which Python does at one go, never takes long.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._parts: list[dict[int, int | tuple[int, ...]]] = [{} for _ in range(_NUM_PARTS)]

    def find(self, prompt_id: int, token_bytes: bytes) -> int | None:
        """The slot, or None."""
        key = self._hash(prompt_id, token_bytes)
        for slot in _as_tuple(self._parts[key % _NUM_PARTS].get(key, ())):
            owner = self._columns.owner[slot]
            if owner is not None and owner.prompt_id == prompt_id and self._token_bytes(slot) == token_bytes:
                return slot
        return None

    def add(self, prompt_id: int, slot: int) -> None:
        """Add a slot whose tokens are not there yet."""
        key = self._hash(prompt_id, self._token_bytes(slot))
        part = self._parts[key % _NUM_PARTS]
        known = part.get(key)
        part[key] = slot if known is None else (*_as_tuple(known), slot)

    def remove(self, prompt_id: int, slot: int) -> None:
        """Remove a slot that was added; the columns still hold it."""
        key = self._hash(prompt_id, self._token_bytes(slot))
        part = self._parts[key % _NUM_PARTS]
        others = tuple(other for other in _as_tuple(part.pop(key)) if other != slot)
        if others:
            part[key] = others

    def _token_bytes(self, slot: int) -> bytes:
        return token_bytes_of(self._columns.data[slot])

    @staticmethod
    def _hash(prompt_id: int, token_bytes: bytes) -> int:
        # Another number in another process, and that does not matter: it decides nothing but the speed.
        return hash((prompt_id, token_bytes))


def _as_tuple(slots: int | tuple[int, ...]) -> tuple[int, ...]:
    return (slots,) if isinstance(slots, int) else slots

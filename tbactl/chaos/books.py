"""What the rings acknowledged, against what the trainer has: nothing may be missing.

Two accounts, of one run over all its attempts:

- Ring by ring: every record that the reader has left behind entered the buffer, or was counted as damaged.
- Prompt by prompt: of the positions that the last checkpoint calls answered, every one entered the buffer in the
  history which that checkpoint belongs to, or was counted as given up or damaged. What a dead trainer had taken in
  after its last checkpoint is undone with it; its prompts are answered again, which this account proves.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path

from tbactl.chaos.faults import NUM_SEARCHERS
from tbactl.chaos.settings import CaseLayout
from tbactl.checkpoints.trainer_state import read_trainer_state
from tbactl.ipc.codec import CodecError, decode
from tbactl.ipc.ring_file import (
    CORRUPT_WORD,
    HEADER_BYTES,
    LOST_WORD,
    READ_CURSOR_WORD,
    RECORD_OVERHEAD_BYTES,
    WRITE_CURSOR_WORD,
)
from tbactl.testing.fake_task import FakeTask
from tbactl.types import TrajectoryGroup


class Mark(Enum):
    """A line of a trace: the mark, and a prompt id or a step."""

    ADMITTED = "admitted"
    UNDECODABLE = "undecodable"
    CHECKPOINT = "checkpoint"
    RESUMED = "resumed"
    WRITTEN = "written"
    GIVEN_UP = "given-up"
    STARTED = "started"
    LEFT = "left"
    """In order: nothing was in its hands."""


class RingGauge:
    """Looks at a ring without owning an end of it; the mapping outlives the file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._capacity = len(self._map) - HEADER_BYTES
        self.damaged_prompts: set[int] = set()
        """Of the records that were damaged through this gauge."""

    def word(self, number: int) -> int:
        """A word of the header."""
        return struct.unpack_from("=Q", self._map, 8 * number)[0]

    @property
    def num_written(self) -> int:
        """Records acknowledged to the writer."""
        return self.word(WRITE_CURSOR_WORD)

    @property
    def num_read(self) -> int:
        """Records that the reader has left behind."""
        return self.word(READ_CURSOR_WORD)

    @property
    def num_damaged(self) -> int:
        """Records that the reader found damaged, or gave up behind a damaged one."""
        return self.word(CORRUPT_WORD) + self.word(LOST_WORD)

    def damage_newest_unread(self) -> bool:
        """Flip a bit in the middle of the newest unread record but the oldest one; False where there are not two.

        The reader must be stopped: it may have the oldest one in its hands.
        """
        num_read, num_written = self.num_read, self.num_written
        if num_written - num_read < 2:
            return False
        position = self.word(READ_CURSOR_WORD + 1 + num_read % 2)
        for _ in range(num_written - num_read - 1):
            position += RECORD_OVERHEAD_BYTES + self._length(position)
        length = self._length(position)
        payload = self._bytes(position + RECORD_OVERHEAD_BYTES, length)
        with contextlib.suppress(CodecError):  # in tests
            record = decode(payload)
            self.damaged_prompts.update({record.prompt_id} if isinstance(record, TrajectoryGroup) else ())
        middle = HEADER_BYTES + (position + RECORD_OVERHEAD_BYTES + length // 2) % self._capacity
        self._map[middle] ^= 1
        return True

    def _length(self, position: int) -> int:
        return int.from_bytes(self._bytes(position, 4), "little")

    def _bytes(self, position: int, length: int) -> bytes:
        return bytes(self._map[HEADER_BYTES + (position + i) % self._capacity] for i in range(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What became of the records and prompts of a run."""

    num_acknowledged: int
    num_damaged: int
    """Noticed and counted by the reader."""
    num_given_up: int
    """Groups that the searchers could not deliver, counted by them."""
    num_lost: int
    """Neither in the trainer's books nor counted anywhere."""


def balance(layout: CaseLayout, *, checkpoint: Path | None, rings: Sequence[RingGauge], seed: int) -> Balance:
    """Close the books of a run.

    Args:
        layout: of the case, with the traces.
        checkpoint: the last one; None: the trainer wrote none.
        rings: of all attempts of the run.
        seed: of the run.
    """
    trainer = list(read_trace(layout.trace("trainer-0")))
    searchers = [mark for i in range(NUM_SEARCHERS) for mark in read_trace(layout.trace(f"searcher-{i}"))]
    counts = Counter(mark for mark, _ in trainer)
    num_damaged = sum(ring.num_damaged for ring in rings) + counts[Mark.UNDECODABLE]
    given_up = {prompt for mark, prompt in searchers if mark is Mark.GIVEN_UP}
    damaged = {prompt for ring in rings for prompt in ring.damaged_prompts}
    missing: set[int] = set()
    if checkpoint is not None:
        state = read_trainer_state(checkpoint)
        admitted = admitted_prompts(trainer, step=state.policy_version)
        missing = answered_prompts(state.stream_positions, seed=seed) - admitted - given_up - damaged
    # A record that its dead reader had taken out and not yet admitted: its prompt is in the account of the prompts.
    in_hands = counts[Mark.STARTED] - counts[Mark.LEFT]
    unaccounted = sum(ring.num_read for ring in rings) - counts[Mark.ADMITTED] - num_damaged - in_hands
    return Balance(
        num_acknowledged=sum(ring.num_written for ring in rings),
        num_damaged=num_damaged,
        num_given_up=len(given_up),
        # A damaged record whose prompt is known excuses that prompt alone; another one excuses any.
        num_lost=max(0, unaccounted, len(missing) - max(0, num_damaged - len(damaged))),
    )


def read_trace(path: Path) -> Iterator[tuple[Mark, int]]:
    """The marks of a process, over all its lives."""
    if path.exists():
        for line in path.read_text(encoding="ascii").splitlines():
            mark, number = line.split()
            yield Mark(mark), int(number)


def admitted_prompts(trace: Sequence[tuple[Mark, int]], *, step: int) -> set[int]:
    """Prompts in the history of the checkpoint of a step: what came after one that was gone back to is undone.

    A checkpoint's mark is made before it is written: the state does not change meanwhile.
    """
    history: list[tuple[Mark, int]] = []
    for mark, number in (*trace, (Mark.RESUMED, step)):
        if mark is Mark.RESUMED:
            while history and history[-1] != (Mark.CHECKPOINT, number):
                history.pop()
        else:
            history.append((mark, number))
    return {number for mark, number in history if mark is Mark.ADMITTED}


def answered_prompts(positions: Sequence[int], *, seed: int) -> set[int]:
    """Prompts before each searcher's position in its share of the stream."""
    prompts = [prompt.prompt_id for prompt in islice(FakeTask().prompts("train", seed=seed), max(positions, default=0))]
    stride = len(positions)
    return {prompts[i] for searcher, end in enumerate(positions) for i in range(searcher, end, stride)}

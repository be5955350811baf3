"""From scored groups to records in the ring. A full ring is back-pressure: nothing is dropped, the outbox waits."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

from tbactl.errors import CapacityError, ChildFailedError
from tbactl.ipc.codec import CodecError, encode
from tbactl.ipc.control_page import AlarmKind, Slot
from tbactl.ipc.ring import RingWriter
from tbactl.searcher.prompt_stream import Cursor
from tbactl.searcher.scoring import ScoredGroup
from tbactl.types import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

MIN_TRAJECTORIES = 2
"""The residual of one trajectory alone is zero: nothing to learn from."""
_MAX_LOST_IN_A_ROW = 32


class UidSource:
    """Uids that no other searcher, and no other life of this one, gives out.

    A uid is searcher (16 bits) | origin (18) | attempt (5) | running number (25). The origin is 0 for a new run and
    1 + the step of the checkpoint for a resumed one: what was made after that checkpoint is in no buffer any more.

    Args:
        searcher: its number.
        resumed_step: of the checkpoint that the run was resumed from; None for a new run.
        attempt: 1 for the first start of this searcher; `supervision.max_restarts` keeps it below 32.
    """

    def __init__(self, *, searcher: int, resumed_step: int | None, attempt: int) -> None:
        assert 0 <= searcher < 2**16 and 0 <= attempt < 2**5, (searcher, attempt)
        origin = 0 if resumed_step is None else (1 + resumed_step) % 2**18
        self._next = searcher << 48 | origin << 30 | attempt << 25

    def take(self) -> int:
        """A new uid."""
        self._next += 1
        return self._next - 1


class Outbox:
    """Turns scored groups into trajectory groups and writes them.

    Args:
        ring: of this searcher.
        cursor: moved when a group is written or given up.
        slot: counters.
        searcher: its number.
        uids: for trajectories.
        in_order: write by position in the prompt stream. A group of which too little survived is then written empty,
            for the trainer counts on it; else it is only counted.
    """

    def __init__(
        self, ring: RingWriter, *, cursor: Cursor, slot: Slot, searcher: int, uids: UidSource, in_order: bool
    ) -> None:
        self._ring = ring
        self._cursor = cursor
        self._slot = slot
        self._searcher = searcher
        self._uids = uids
        self._in_order = in_order
        self._waiting: deque[ScoredGroup] = deque()
        self._encoded: bytes | None = None  # of the first one waiting
        self._sequence_number = 0
        self._num_lost_in_a_row = 0

    @property
    def num_waiting(self) -> int:
        """Groups not yet written."""
        return len(self._waiting)

    def put(self, group: ScoredGroup) -> None:
        """Take a group.

        Raises:
            ChildFailedError: many groups in a row came without a usable completion.
        """
        self._slot.add(num_failed=group.num_failed)
        is_lost = len(group.scored) < MIN_TRAJECTORIES
        self._num_lost_in_a_row = self._num_lost_in_a_row + 1 if is_lost else 0
        if self._num_lost_in_a_row == _MAX_LOST_IN_A_ROW:
            raise ChildFailedError(
                f"the last {_MAX_LOST_IN_A_ROW} prompts each had fewer than {MIN_TRAJECTORIES} usable completions; the "
                f"last one failed because: {group.failure}"
            )
        if is_lost:
            logger.warning(
                "group given up position=%d usable=%d reason=%.200s",
                group.streamed.position,
                len(group.scored),
                group.failure,
            )
        if not is_lost or self._in_order:
            self._waiting.append(group)
        else:
            self._answer(group)

    def flush(self) -> int:
        """Write what can be written now; returns how many groups.

        Raises:
            CapacityError, CodecError: in order, a prompt that cannot be written even without completions.
        """
        num_written = 0
        if self._in_order and self._encoded is None:
            self._waiting = deque(sorted(self._waiting, key=lambda group: group.streamed.position))
        while self._waiting and self._write_first():
            num_written += 1
        return num_written

    def _write_first(self) -> bool:
        group = self._waiting[0]
        if self._in_order and group.streamed.position != self._cursor.position:
            return False
        try:
            if self._encoded is None:
                self._encoded = encode(self._record(group))
            if not self._ring.try_write(self._encoded):
                return False
            self._slot.add(num_groups_written=1)
        except (CapacityError, CodecError) as error:
            logger.error("group given up: %s", error)
            self._slot.set(alarm_kind=AlarmKind.DELIVERY)
            self._slot.add(num_alarms=1, num_failed=len(group.scored))
            if self._in_order:
                if not group.scored:
                    raise
                self._encoded = None
                num_failed = group.num_failed + len(group.scored)
                self._waiting[0] = replace(group, scored=(), num_failed=num_failed)
                return self._write_first()
        self._waiting.popleft()
        self._encoded = None
        self._sequence_number += 1
        self._answer(group)
        return True

    def _answer(self, group: ScoredGroup) -> None:
        # After the record is in the ring, never before: a crash in between must not lose the prompt.
        self._cursor.answer(group.streamed.position)
        self._slot.set(stream_position=self._cursor.position)

    def _record(self, group: ScoredGroup) -> TrajectoryGroup:
        scored = group.scored if len(group.scored) >= MIN_TRAJECTORIES else ()
        return TrajectoryGroup(
            prompt_id=group.streamed.prompt.prompt_id,
            prompt_text=group.streamed.prompt.text,
            prompt_token_ids=group.streamed.token_ids,
            trajectories=tuple(
                Trajectory(uid=self._uids.take(), completion=completion, reward=reward) for completion, reward in scored
            ),
            searcher=self._searcher,
            sequence_number=self._sequence_number,
            stream_position=self._cursor.after(group.streamed.position),
            num_failed=group.num_failed,
        )

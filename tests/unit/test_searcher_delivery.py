from __future__ import annotations

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tbactl.config.sections import SupervisionSection
from tbactl.errors import CapacityError, ChildFailedError
from tbactl.ipc.codec import decode
from tbactl.ipc.control_page import ControlPage
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.searcher.delivery import Outbox, UidSource
from tbactl.searcher.prompt_stream import Cursor, StreamedPrompt
from tbactl.searcher.scoring import ScoredGroup
from tbactl.types import Completion, Prompt, TrajectoryGroup

MAX_ATTEMPT = 31


class Desk:
    """An outbox with its ring, read at will."""

    def __init__(self, root, *, capacity_bytes=2**16, in_order=False):
        self.page = ControlPage.create(root / "control", num_trainer_ranks=1, num_searchers=1)
        self.slot = self.page.searcher(0)
        create_ring(root / "ring", capacity_bytes=capacity_bytes)
        self.writer, self.reader = RingWriter.open(root / "ring"), RingReader.open(root / "ring")
        self.cursor = Cursor(0, stride=1)
        uids = UidSource(searcher=3, resumed_step=0, attempt=1)
        self.outbox = Outbox(self.writer, cursor=self.cursor, slot=self.slot, searcher=0, uids=uids, in_order=in_order)

    def read(self):
        found = []
        while (payload := self.reader.try_read()) is not None:
            group = decode(payload)
            assert isinstance(group, TrajectoryGroup)
            found.append(group)
        return found


def scored(position: int, *, usable: int = 2, num_tokens: int = 4) -> ScoredGroup:
    completion = Completion(
        token_ids=(1,) * num_tokens, logprobs=(-1.0,) * num_tokens, text="a" * num_tokens, finish_reason="length"
    )
    return ScoredGroup(
        streamed=StreamedPrompt(position=position, prompt=Prompt(prompt_id=position, text="p"), token_ids=(1, 2)),
        scored=tuple((completion, float(k)) for k in range(usable)),
        num_failed=3 - usable,
        failure="out of luck",
    )


def test_outbox_writes_a_group_with_its_rewards(tmp_path):
    desk = Desk(tmp_path)
    desk.outbox.put(scored(0))
    assert desk.outbox.flush() == 1
    (group,) = desk.read()
    assert (group.prompt_id, group.prompt_token_ids, group.num_failed) == (0, (1, 2), 1)
    assert [t.reward for t in group.trajectories] == [0.0, 1.0]
    assert group.stream_position == 1
    assert desk.slot.get("num_failed") == 1 and desk.slot.get("num_groups_written") == 1


def test_full_ring_holds_groups_back_and_loses_none(tmp_path):
    desk = Desk(tmp_path, capacity_bytes=4096)
    for position in range(40):
        desk.outbox.put(scored(position, num_tokens=20))
    written = desk.outbox.flush()
    assert 0 < written < 40 and desk.outbox.num_waiting == 40 - written
    assert desk.slot.get("stream_position") == written
    found = []
    while desk.outbox.num_waiting or not found:
        found += desk.read()
        desk.outbox.flush()
    found += desk.read()
    assert [group.prompt_id for group in found] == list(range(40))
    assert [group.sequence_number for group in found] == list(range(40))


@pytest.mark.fault("I-50")
def test_stream_position_of_a_record_says_where_to_resume_after_it(tmp_path):
    desk = Desk(tmp_path)
    for position in (2, 0, 3, 1):
        desk.outbox.put(scored(position))
    desk.outbox.flush()
    assert [(group.prompt_id, group.stream_position) for group in desk.read()] == [(2, 0), (0, 1), (3, 1), (1, 4)]


@pytest.mark.fault("I-07")
def test_page_shows_a_position_only_when_its_record_is_in_the_ring(tmp_path):
    desk = Desk(tmp_path, capacity_bytes=4096)
    position = 0
    while not desk.outbox.num_waiting:
        desk.outbox.put(scored(position, num_tokens=20))
        desk.outbox.flush()
        position += 1
    blocked = position - 1
    desk.outbox.put(scored(position, usable=1))  # given up while the one before it waits
    assert desk.slot.get("stream_position") == blocked
    desk.read()
    desk.outbox.flush()
    assert desk.slot.get("stream_position") == position + 1


@pytest.mark.fault("I-05")
def test_group_with_one_survivor_is_given_up_and_counted(tmp_path):
    desk = Desk(tmp_path)
    desk.outbox.put(scored(0, usable=1))
    assert desk.outbox.num_waiting == 0 and desk.outbox.flush() == 0
    assert desk.slot.get("num_failed") == 2 and desk.slot.get("stream_position") == 1


@pytest.mark.fault("I-14")
def test_in_order_outbox_waits_for_the_next_position_and_writes_lost_groups_empty(tmp_path):
    desk = Desk(tmp_path, in_order=True)
    desk.outbox.put(scored(2))
    desk.outbox.put(scored(1, usable=1))
    assert desk.outbox.flush() == 0
    desk.outbox.put(scored(0))
    assert desk.outbox.flush() == 3
    assert [(g.prompt_id, len(g.trajectories)) for g in desk.read()] == [(0, 2), (1, 0), (2, 2)]


@pytest.mark.fault("I-67")
def test_group_larger_than_the_ring_is_an_alarm_and_the_next_one_passes(tmp_path):
    desk = Desk(tmp_path, capacity_bytes=4096)
    desk.outbox.put(scored(0, num_tokens=5000))
    desk.outbox.put(scored(1))
    desk.outbox.flush()
    assert [group.prompt_id for group in desk.read()] == [1]
    assert desk.slot.get("num_alarms") == 1 and desk.slot.get("num_failed") == 1 + 2 + 1
    assert desk.slot.get("stream_position") == 2


@pytest.mark.fault("I-05")
def test_outbox_gives_up_when_nothing_succeeds_any_more(tmp_path):
    desk = Desk(tmp_path)
    with pytest.raises(ChildFailedError, match="out of luck"):
        for position in range(100):
            desk.outbox.put(scored(position, usable=0))


@pytest.mark.fault("I-05")
def test_one_success_among_failures_is_enough_to_go_on(tmp_path):
    desk = Desk(tmp_path)
    for position in range(200):
        desk.outbox.put(scored(position, usable=2 if position % 20 == 0 else 0))
    assert desk.outbox.flush() == 10


def test_uids_differ_between_searchers_lives_and_resumes():
    sources = [
        UidSource(searcher=searcher, resumed_step=step, attempt=attempt)
        for searcher in (0, 1, 65535)
        for step in (None, 0, 1, 10)
        for attempt in (1, 2, MAX_ATTEMPT)
    ]
    uids = [source.take() for source in sources for _ in range(100)]
    assert len(set(uids)) == len(uids) and all(0 <= uid < 2**64 for uid in uids)
    assert UidSource(searcher=7, resumed_step=0, attempt=1).take() >> 48 == 7


def test_more_restarts_than_uids_can_tell_apart_are_refused():
    assert SupervisionSection(max_restarts=MAX_ATTEMPT - 1).max_restarts + 1 == MAX_ATTEMPT
    with pytest.raises(ValidationError, match="max_restarts"):
        SupervisionSection(max_restarts=MAX_ATTEMPT)


def test_in_order_group_that_cannot_be_written_is_answered_empty(tmp_path):
    desk = Desk(tmp_path, capacity_bytes=4096, in_order=True)
    broken = Completion(token_ids=(1, 2), logprobs=(-1.0,), text="ab", finish_reason="length")
    desk.outbox.put(scored(0, num_tokens=5000))
    desk.outbox.put(replace(scored(1), scored=((broken, 0.0), (broken, 1.0))))
    desk.outbox.put(scored(2))
    assert desk.outbox.flush() == 3
    groups = desk.read()
    assert [(g.prompt_id, len(g.trajectories), g.num_failed) for g in groups] == [(0, 0, 3), (1, 0, 3), (2, 2, 1)]
    assert [group.stream_position for group in groups] == [1, 2, 3]
    assert desk.slot.get("num_alarms") == 2


def test_in_order_prompt_that_fits_no_ring_ends_the_searcher(tmp_path):
    desk = Desk(tmp_path, capacity_bytes=4096, in_order=True)
    group = scored(0)
    huge = replace(group.streamed, prompt=Prompt(prompt_id=0, text="p" * 5000))
    desk.outbox.put(replace(group, streamed=huge))
    with pytest.raises(CapacityError, match="ring_capacity_bytes"):
        desk.outbox.flush()


@pytest.mark.fault("I-29")
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_logprob_that_is_not_finite_costs_its_group_and_is_counted(tmp_path, value):
    desk = Desk(tmp_path)
    broken = Completion(token_ids=(1, 2), logprobs=(-1.0, value), text="ab", finish_reason="length")
    desk.outbox.put(replace(scored(0), scored=((broken, 0.0), (broken, 1.0))))
    desk.outbox.put(scored(1))
    desk.outbox.flush()
    assert [group.prompt_id for group in desk.read()] == [1]
    assert desk.slot.get("num_alarms") == 1 and desk.slot.get("num_failed") == 1 + 2 + 1
    assert desk.slot.get("stream_position") == 2

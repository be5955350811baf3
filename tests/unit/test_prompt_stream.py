from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl.errors import TaskError
from tbactl.searcher.prompt_stream import Cursor, PromptStream
from tbactl.types import Prompt


def prompts(*, too_long_every: int = 0):
    for i in itertools.count():
        is_long = too_long_every and i % too_long_every == 0
        yield Prompt(prompt_id=i, text="x" * (99 if is_long else 3))


def stream(source=None, *, searcher=0, num_searchers=1, start=0) -> PromptStream:
    return PromptStream(
        source if source is not None else prompts(),
        encode=lambda text: tuple(map(ord, text)),
        max_prompt_tokens=10,
        searcher=searcher,
        num_searchers=num_searchers,
        start=start,
    )


def test_stream_of_several_searchers_together_gives_every_prompt_once():
    shards = [stream(searcher=i, num_searchers=3) for i in range(3)]
    taken = sorted(shard.take().prompt.prompt_id for shard in shards for _ in range(10))
    assert taken == list(range(30))


@pytest.mark.fault("I-32")
def test_stream_numbers_only_prompts_that_fit():
    shards = [stream(prompts(too_long_every=4), searcher=i, num_searchers=2) for i in range(2)]
    taken = sorted((p.position, p.prompt.prompt_id) for shard in shards for p in [shard.take() for _ in range(6)])
    assert [position for position, _ in taken] == list(range(12))
    assert [prompt_id for _, prompt_id in taken] == [i for i in range(16) if i % 4]
    assert all(shard.num_skipped > 0 for shard in shards)


@pytest.mark.fault("I-14")
def test_stream_skips_empty_prompts():
    source = itertools.chain([Prompt(prompt_id=7, text="")], prompts())
    assert stream(source).take().prompt.prompt_id == 0


@pytest.mark.fault("I-52")
@given(st.integers(0, 40), st.integers(1, 5), st.data())
def test_stream_started_later_continues_the_same_sequence(start, num_searchers, data):
    searcher = data.draw(st.integers(0, num_searchers - 1))
    shard = stream(searcher=searcher, num_searchers=num_searchers, start=start)
    first = shard.take()
    assert first.position == shard.next_position - num_searchers
    assert start <= first.position < start + num_searchers
    assert first.position % num_searchers == searcher
    assert first.prompt.prompt_id == first.position


def test_stream_that_ends_is_the_tasks_fault():
    short = stream(itertools.islice(prompts(), 2))
    short.take()
    short.take()
    with pytest.raises(TaskError, match="endless"):
        short.take()


def test_stream_may_be_any_iterable_and_must_be_one():
    several = stream([Prompt(prompt_id=7, text="abc")])
    assert several.take().prompt.prompt_id == 7
    with pytest.raises(TaskError, match="endless"):
        several.take()
    with pytest.raises(TaskError, match=r'prompts\("train"\) returned int; it must return an iterator'):
        stream(5).take()


def test_stream_in_which_nothing_fits_says_so():
    with pytest.raises(TaskError, match="max_prompt_tokens = 10"):
        stream(prompts(too_long_every=1)).take()


@pytest.mark.fault("I-07")
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 10_000))
def test_cursor_is_the_lowest_unanswered_position(stride, start, seed):
    positions = [start + stride * i for i in range(12)]
    answered: set[int] = set()
    cursor = Cursor(start, stride=stride)
    for position in random.Random(seed).sample(positions, len(positions)):
        expected = min((p for p in positions if p not in answered | {position}), default=positions[-1] + stride)
        assert cursor.after(position) == expected
        before = cursor.position
        cursor.answer(position)
        answered.add(position)
        assert cursor.position == expected >= before


def test_stream_tells_of_its_progress_on_a_long_way():
    calls = []
    shard = PromptStream(
        prompts(too_long_every=4),
        encode=lambda text: tuple(map(ord, text)),
        max_prompt_tokens=10,
        searcher=0,
        num_searchers=1,
        start=3000,
        on_progress=lambda: calls.append(1),
    )
    assert shard.take().prompt.prompt_id == 4001
    assert len(calls) >= 4001 // 500

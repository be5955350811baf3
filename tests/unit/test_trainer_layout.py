from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl.trainer.layout import num_padded_tokens, pack, plan_micro_batches
from tests.support.trainer_groups import make_group

group_shapes = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(0, 20), min_size=1, max_size=6)), min_size=1, max_size=8
)


def groups_of(shapes):
    return [
        make_group(prompt_tokens=prompt, completion_tokens=lengths, prompt_id=number)
        for number, (prompt, lengths) in enumerate(shapes)
    ]


@pytest.mark.fault("I-32")
@given(group_shapes)
def test_pack_any_groups_places_every_completion_once_without_overlap(shapes):
    groups = groups_of(shapes)
    packing = pack(groups)

    assert sorted(s.trajectory for s in packing.segments) == list(range(sum(len(lengths) for _, lengths in shapes)))
    lengths = [max(0, n - 1) for _, ns in shapes for n in ns]
    owners = [number for number, (_, ns) in enumerate(shapes) for _ in ns]
    taken = set()
    for segment in packing.segments:
        assert segment.length == lengths[segment.trajectory]
        assert packing.row_groups[segment.row] == owners[segment.trajectory], "a row follows on one prompt"
        places = {(segment.row, segment.start + i) for i in range(segment.length)}
        assert all(place[1] < packing.row_tokens for place in places)
        assert not taken & places
        taken |= places


def test_pack_short_completions_share_a_row():
    packing = pack([make_group(prompt_tokens=4, completion_tokens=[11, 6, 5, 2])])

    assert packing.row_tokens == 10
    assert len(packing.row_groups) == 2
    assert packing.num_padded_tokens == 4 + 2 * 10


@pytest.mark.fault("R-10")
def test_num_padded_tokens_shared_prompt_is_less_than_padded_rows():
    group = make_group(prompt_tokens=76, completion_tokens=[54] * 8)

    assert num_padded_tokens([group], shares_prompt=False) == 8 * 130
    assert num_padded_tokens([group], shares_prompt=True) == 76 + 8 * 53


@pytest.mark.fault("I-04")
@given(group_shapes, st.integers(1, 3), st.integers(1, 200), st.booleans())
def test_plan_deals_each_group_once_and_gives_all_ranks_as_many_passes(shapes, num_ranks, budget, shares_prompt):
    groups = groups_of(shapes)
    if len(groups) < num_ranks:
        return
    plans = plan_micro_batches(groups, num_ranks=num_ranks, budget_tokens=budget, shares_prompt=shares_prompt)

    assert len(plans) == num_ranks
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(index for plan in plans for indexes in plan for index in indexes) == list(range(len(groups)))
    assert all(any(indexes for indexes in plan) for plan in plans), "every rank has something to do"
    for plan in plans:
        for indexes in plan:
            tokens = num_padded_tokens([groups[i] for i in indexes], shares_prompt=shares_prompt)
            assert tokens <= budget or len(indexes) == 1, "only a single group may exceed the budget"


def test_plan_unequal_groups_balances_tokens_between_ranks():
    lengths = [40, 2, 2, 2, 20, 18]
    groups = [make_group(prompt_tokens=2, completion_tokens=[n] * 4, prompt_id=i) for i, n in enumerate(lengths)]
    plans = plan_micro_batches(groups, num_ranks=2, budget_tokens=10_000, shares_prompt=True)

    loads = [sum(lengths[i] for indexes in plan for i in indexes) for plan in plans]
    assert max(loads) - min(loads) <= 4


def test_plan_fewer_groups_than_ranks_is_refused():
    with pytest.raises(AssertionError, match="1 groups cannot be dealt to 2 ranks"):
        plan_micro_batches(
            [make_group(prompt_tokens=2, completion_tokens=[3])], num_ranks=2, budget_tokens=99, shares_prompt=True
        )

"""Orders of drawing take their draws back exactly."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from tbactl.replay.prompt_orders import RecencyOrder, Urn

keys = st.tuples(st.booleans(), st.integers(0, 2))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 12), st.integers(0, 2**32))
def test_undone_draws_leave_the_urn_as_it_was(num_items, num_left, num_draws, seed):
    urn = Urn(range(num_items), num_left=min(num_left, num_items))
    before = list(urn.items), urn.num_left
    rng = np.random.default_rng(seed)
    urn.begin()
    for _ in range(num_draws):
        urn.draw(rng)
    urn.undo()
    assert (urn.items, urn.num_left) == before
    for item in list(urn.items):
        urn.remove(item)
    assert len(urn) == 0


@given(st.lists(keys, min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 7), keys), max_size=12))
def test_undone_moves_leave_the_order_as_it_was(first, moves):
    order = RecencyOrder()
    for prompt_id, key in enumerate(first):
        order.place(prompt_id, key)
    before = order.dump()
    order.begin()
    for prompt_id, key in moves:
        order.place(prompt_id % len(first), key)
    order.undo()
    assert order.dump() == before
    for prompt_id in range(len(first)):
        order.discard(prompt_id)
    assert order.dump() == []

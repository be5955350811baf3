"""No two trajectories that a prompt holds are almost the same, whatever comes and goes; against the plain formula."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbactl.replay import near_duplicates
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine, HeldTexts
from tbactl.replay.snapshot import load_buffer, save_buffer
from tests.support.replay_groups import make_text_group

TOLERANCE = 0.25
DIMENSIONS = 3

texts = st.text(alphabet="ab", max_size=6)
rewards = st.sampled_from([0.0, 0.5, 1.0])
arrivals = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.lists(st.tuples(texts, rewards, st.integers(0, 2)), max_size=4)),
    max_size=12,
)


def edits(left, right):
    """Levenshtein's distance by its definition."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        above, row = row, [i]
        for j, b in enumerate(right, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]


def vector(text):
    counts = np.array([text.count("a"), text.count("b"), 0.5], dtype=np.float32)
    return counts / np.linalg.norm(counts)


def encode(batch):
    return np.array([vector(text) for text in batch]).reshape(len(batch), DIMENSIONS)


def is_near_by_edits(left, right):
    return edits(left, right) < TOLERANCE * (len(left) + len(right))


def is_near_by_cosine(left, right):
    return float(vector(left) @ vector(right)) > 0.95


MEASURES = {
    "edit-distance": (lambda: EditDistance(tolerance=TOLERANCE), is_near_by_edits),
    "embedding": (lambda: EmbeddingCosine(encode, tolerance=0.95), is_near_by_cosine),
}


class Model:
    """What the buffer should hold: (tokens, text, reward, version) in the order of insertion."""

    def __init__(self, is_near):
        self.is_near = is_near
        self.held = {}

    def insert(self, prompt_id, version, members):
        held = self.held.setdefault(prompt_id, [])
        for tokens, text, reward in members:
            known = next((item for item in held if item[0] == tokens), None)
            if known is not None:
                if known[3] <= version:
                    held.remove(known)
                    held.append((tokens, text, reward, version))
                continue
            rivals = [item for item in held if self.is_near(text, item[1])]
            if all((item[2], item[3]) <= (reward, version) for item in rivals):
                for item in rivals:
                    held.remove(item)
                held.append((tokens, text, reward, version))

    def trim(self, prompt_id, capacity):
        held = self.held[prompt_id]
        while len(held) > capacity:
            held.remove(min(held, key=lambda item: (item[3], held.index(item))))


def held_by(buffer):
    return {
        prompt_id: sorted(
            (s.to_trajectory().completion.token_ids, s.to_trajectory().completion.text, s.reward, s.version)
            for s in prompt.trajectories
        )
        for prompt_id, prompt in buffer.prompts.items()
    }


@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=150)
@given(arrivals=arrivals, restart_after=st.integers(0, 12), many_held=st.sampled_from([0, 2, 100]))
def test_buffer_holds_what_the_plain_rule_leaves(name, arrivals, restart_after, many_held):
    with patch.object(near_duplicates, "_MANY_HELD", many_held):
        check_buffer_against_model(name, arrivals, restart_after)


def check_buffer_against_model(name, arrivals, restart_after):
    make, is_near = MEASURES[name]
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=3, likeness=make())
    model = Model(is_near)
    for number, (prompt_id, version, members) in enumerate(arrivals):
        # Tokens: the text, and a variant of it that reads the same.
        items = [((*map(ord, text), variant), text, reward) for text, reward, variant in members]
        buffer.insert(make_text_group(prompt_id, items, version=version))
        model.insert(prompt_id, version, items)
        model.trim(prompt_id, 3)
        if number == restart_after:
            with tempfile.TemporaryDirectory() as directory:
                save_buffer(buffer, Path(directory))
                buffer = load_buffer(Path(directory), capacity=100, capacity_per_prompt=3, likeness=make())
    assert held_by(buffer) == {prompt_id: sorted(held) for prompt_id, held in model.held.items() if held}
    for held in held_by(buffer).values():
        assert not any(is_near(a[1], b[1]) for a, b in itertools.combinations(held, 2))


def held_texts(held):
    return HeldTexts(
        slots=np.arange(len(held), dtype=np.int32),
        insert_numbers=np.arange(len(held), dtype=np.int64),
        text_of=held.__getitem__,
    )


# Also some that fill more than one machine word, and some whose characters are not of one byte.
any_texts = texts | st.text(alphabet="abc\u00e9\u4e2d", min_size=55, max_size=75)


@given(
    st.lists(any_texts, min_size=1, max_size=5),
    st.lists(any_texts, max_size=8),
    st.sampled_from([0, 1024]),
    st.booleans(),
)
def test_edit_distance_is_the_formula(new, held, many_held, one_at_a_time):
    with (
        patch.object(near_duplicates, "_MANY_HELD", many_held),
        patch.object(near_duplicates, "_COMPARED_TEXTS", 1 if one_at_a_time else 32),
    ):
        flags = EditDistance(tolerance=TOLERANCE).compare(new, held_texts(held))
    assert flags.tolist() == [[is_near_by_edits(a, b) for b in (*held, *new)] for a in new]

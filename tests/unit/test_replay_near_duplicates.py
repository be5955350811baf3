from __future__ import annotations

import random

import numpy as np
import pytest

from tbactl.errors import ConfigError
from tbactl.replay import near_duplicates
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.near_duplicates import EditDistance, EmbeddingCosine
from tbactl.replay.snapshot import load_buffer, save_buffer
from tests.support.replay_groups import make_text_group


def insert(buffer, *members, prompt_id=0, version=0):
    """Members: (text, reward); tokens are those of the text."""
    items = [(tuple(map(ord, text)), text, reward) for text, reward in members]
    return buffer.insert(make_text_group(prompt_id, items, version=version))


def held(buffer, prompt_id=0):
    return [stored.to_trajectory().completion.text for stored in buffer.prompts[prompt_id].trajectories]


@pytest.fixture
def buffer():
    return ReplayBuffer(capacity=100, capacity_per_prompt=100, likeness=EditDistance(tolerance=0.25))


def test_the_higher_reward_stays_whichever_came_first(buffer):
    insert(buffer, ("write a poem about cats", 1.0))
    report = insert(buffer, ("write a poem about bats", 0.5))
    assert held(buffer) == ["write a poem about cats"] and report.num_near_duplicates == 1
    insert(buffer, ("write a poem about rats", 2.0))
    assert held(buffer) == ["write a poem about rats"]
    assert buffer.counters.num_near_duplicates == 2


def test_of_equal_rewards_the_newer_version_stays_then_the_later_one(buffer):
    insert(buffer, ("write a poem about cats", 1.0), version=3)
    insert(buffer, ("write a poem about bats", 1.0), version=3)
    assert held(buffer) == ["write a poem about bats"]
    insert(buffer, ("write a poem about rats", 1.0), version=2)
    assert held(buffer) == ["write a poem about bats"]


def test_one_that_is_better_than_several_replaces_them_all(buffer):
    insert(buffer, ("aaaabbbb", 0.0), ("ccccdddd", 0.0))
    insert(buffer, ("aaaadddd", 1.0), ("zzzzzzzz", 0.0))
    # Four edits of eight characters each way are not fewer than 0.25 * 16: nothing is almost the same yet.
    assert len(buffer) == 4
    insert(buffer, ("aaaabddd", 2.0))
    assert sorted(held(buffer)) == ["aaaabddd", "ccccdddd", "zzzzzzzz"]


def test_members_of_one_group_are_compared_with_one_another(buffer):
    insert(buffer, ("tell me a joke", 0.0), ("tell me a yoke", 1.0), ("tell me a coke", 0.5))
    assert held(buffer) == ["tell me a yoke"]


def test_other_prompts_do_not_count(buffer):
    insert(buffer, ("tell me a joke", 0.0))
    insert(buffer, ("tell me a joke", 0.0), prompt_id=1)
    assert len(buffer) == 2


def test_what_was_evicted_is_no_rival_any_more():
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=2, likeness=EditDistance(tolerance=0.25))
    insert(buffer, ("tell me a joke", 1.0))
    insert(buffer, ("something else", 0.0), ("0123456789", 0.0), version=1)
    assert "tell me a joke" not in held(buffer)
    insert(buffer, ("tell me a yoke", 0.0), version=2)
    assert "tell me a yoke" in held(buffer)


def one_hot_words(calls):
    """Cosine = shared words, over a fixed vocabulary."""
    vocabulary = ["red", "green", "blue", "big", "small"]

    def encode(texts):
        calls.append(list(texts))
        vectors = np.array([[word in text.split() for word in vocabulary] for text in texts], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return encode


def test_embedding_compares_meanings_and_encodes_each_text_once():
    calls = []
    likeness = EmbeddingCosine(one_hot_words(calls), tolerance=0.6)
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=100, likeness=likeness)
    insert(buffer, ("big red", 1.0), ("small green", 1.0))
    insert(buffer, ("red big", 0.5), ("blue", 0.0))
    assert sorted(held(buffer)) == ["big red", "blue", "small green"]
    insert(buffer, ("blue small", 1.0))  # cosine 0.71 with "blue", 0.5 with "small green"
    assert sorted(held(buffer)) == ["big red", "blue small", "small green"]
    texts = [text for call in calls for text in call]
    assert len(texts) == len(set(texts)) == 5


def test_embedding_of_a_slots_new_owner_is_not_that_of_the_old_one():
    buffer = ReplayBuffer(capacity=2, capacity_per_prompt=2, likeness=EmbeddingCosine(one_hot_words([]), tolerance=0.9))
    insert(buffer, ("red", 1.0), ("green", 1.0))
    insert(buffer, ("blue", 1.0), ("big", 1.0), version=1)  # takes both slots
    insert(buffer, ("red", 0.0), version=2)
    insert(buffer, ("blue", 0.0), version=3)
    assert "red" in held(buffer)


def test_embedding_after_a_resume_encodes_in_batches_and_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(near_duplicates, "_MAX_REMEMBERED", 2)
    buffer = ReplayBuffer(capacity=100, capacity_per_prompt=100)
    insert(buffer, *((word, 1.0) for word in ("red", "green", "blue", "big", "small")))
    save_buffer(buffer, tmp_path)
    calls, signs = [], []
    likeness = EmbeddingCosine(one_hot_words(calls), tolerance=0.6, note_progress=lambda: signs.append(len(calls)))
    resumed = load_buffer(tmp_path, capacity=100, capacity_per_prompt=100, likeness=likeness)
    with caplog.at_level("INFO"):
        insert(resumed, ("red big", 0.0))
        assert [len(call) for call in calls] == [1, 2, 2, 1]
        assert signs == [2, 3, 4]
        assert "encoded=4 of 5 held texts" in caplog.text
        insert(resumed, ("small blue", 0.0))
    assert len(signs) == 3


def test_edit_distance_counts_edits_of_few_pairs_only():
    """Texts of one language have most letters in common, and yet the bound tells them apart."""
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 8))) for _ in range(500)]
    texts = [" ".join(rng.choices(words, k=6)) for _ in range(2000)]
    likeness, counted = EditDistance(tolerance=0.25), []
    count_edits = likeness._edits
    likeness._edits = lambda left, right: counted.append(len(left)) or count_edits(left, right)  # type: ignore
    buffer = ReplayBuffer(capacity=10_000, capacity_per_prompt=10_000, likeness=likeness)
    insert(buffer, *((text, 0.0) for text in texts[:1980]))
    counted.clear()
    insert(buffer, *((text, 0.0) for text in texts[1980:]))
    assert sum(counted) < 0.02 * 20 * 2000


def test_without_rapidfuzz_the_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ConfigError, match="needs the package 'rapidfuzz'"):
        EditDistance(tolerance=0.25)

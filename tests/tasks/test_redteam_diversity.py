"""Diversity, distinct texts, clusters, self-BLEU: identities, oracles that others wrote, intervals that cover."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from tbactl.errors import ConfigError
from tbactl_redteam.diversity import CLUSTER_COSINE, cluster_labels, cosine_diversity, distinct, normalized
from tbactl_redteam.encoder import sentence_encoder
from tbactl_redteam.self_bleu import self_bleu, self_bleu_scores

WORDS = st.lists(st.sampled_from(["a", "b", "c", "dog", ",", "!"]), max_size=8).map(" ".join)


def unit_vectors(number, *, dimensions=6, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(number, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def is_within(estimate):
    return estimate.interval[0] <= estimate.value <= estimate.interval[1]


@pytest.mark.fault("I-84")
def test_diversity_is_the_mean_over_all_pairs():
    vectors = unit_vectors(30)
    cosines = [float(a @ b) for a, b in itertools.combinations(vectors.astype(float), 2)]
    assert cosine_diversity(vectors).value == pytest.approx(1 - sum(cosines) / len(cosines))


def test_diversity_of_equal_of_orthogonal_and_of_opposite_texts():
    assert cosine_diversity(np.eye(4, dtype=np.float32)[[0, 0, 0]]).value == pytest.approx(0.0)
    assert cosine_diversity(np.eye(4, dtype=np.float32)).value == pytest.approx(1.0)
    assert cosine_diversity(np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32)).value == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(20))
def test_diversity_of_equal_texts_is_not_negative_by_rounding(seed):
    estimate = cosine_diversity(np.repeat(unit_vectors(1, dimensions=384, seed=seed), 5, axis=0))
    assert estimate.value >= 0.0 and estimate.interval[0] >= 0.0
    assert estimate.value == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("number", [0, 1])
def test_diversity_of_fewer_than_two_texts_is_unknown(number):
    assert cosine_diversity(unit_vectors(number)) is None


def test_diversity_of_two_texts_has_no_interval():
    assert cosine_diversity(unit_vectors(2)).interval is None


def test_diversity_does_not_depend_on_the_order_of_the_texts():
    vectors = unit_vectors(20)
    assert cosine_diversity(vectors[::-1]).value == pytest.approx(cosine_diversity(vectors).value)


def test_a_text_without_tokens_is_like_no_other():
    vectors = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert cosine_diversity(vectors).value == pytest.approx(1 - 1 / 3)


@pytest.mark.parametrize("number", [3, 12, 60])
def test_interval_of_diversity_is_not_biased_by_resampled_copies(number):
    # Orthogonal texts: with copies as pairs each resample would look less diverse than the set.
    estimate = cosine_diversity(np.eye(number, dtype=np.float32))
    assert estimate.interval == pytest.approx((1.0, 1.0))


def test_interval_of_diversity_covers_the_population_as_often_as_it_says():
    # Two directions, drawn with 0.3 and 0.7: of a pair 1 - cosine is 1 with probability 0.42.
    hits = 0
    for seed in range(100):
        chosen = np.random.default_rng(seed).random(80) < 0.3
        low, high = cosine_diversity(np.eye(2, dtype=np.float32)[chosen.astype(int)]).interval
        hits += low <= 0.42 <= high
    assert 86 <= hits <= 100


def test_interval_of_diversity_has_the_width_of_scipys_bootstrap_of_the_projection():
    vectors = unit_vectors(200, dimensions=3) + np.array([1.0, 0.0, 0.0], dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    low, high = cosine_diversity(vectors).interval
    # First order (Hoeffding): a U-statistic of pairs varies as twice the mean of each text's mean over the others.
    own = 2 * (1 - vectors @ vectors.mean(axis=0))
    expected = bootstrap((own,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert high - low == pytest.approx(expected.high - expected.low, rel=0.15)


def test_labels_of_a_cluster_are_pairwise_alike_and_like_texts_are_together():
    vectors = np.concatenate([unit_vectors(60, dimensions=3, seed=2), unit_vectors(3, dimensions=3, seed=2)[:1]])
    labels = cluster_labels(vectors)
    for (i, a), (j, b) in itertools.combinations(enumerate(vectors), 2):
        if labels[i] == labels[j]:
            assert a @ b >= CLUSTER_COSINE - 1e-6
    assert labels[0] == labels[-1]


def test_clusters_do_not_chain():
    angles = np.linspace(0, math.pi, 40)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert len(set(cluster_labels(vectors))) >= 3


def test_groups_that_are_far_apart_are_found():
    centers = np.eye(5, dtype=np.float32)[np.arange(50) % 5]
    noisy = centers + 0.02 * np.random.default_rng(0).normal(size=centers.shape).astype(np.float32)
    labels = cluster_labels(noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    assert len(set(labels)) == 5
    assert all(len({labels[i] for i in range(start, 50, 5)}) == 1 for start in range(5))


@pytest.mark.parametrize("number", [0, 1])
def test_clusters_of_fewer_than_two_texts(number):
    assert cluster_labels(unit_vectors(number)) == [0] * number


@pytest.mark.parametrize(
    ("text", "other"), [("Say  damn", "say damn"), ("\uff33ay damn", "say damn"), (" say\u00a0damn\n", "SAY DAMN")]
)
def test_same_text_in_another_spelling_is_not_distinct(text, other):
    assert normalized(text) == normalized(other)


def test_other_words_are_distinct():
    assert normalized("say damn") != normalized("say damn!")


def test_distinct_counts_labels_and_among_the_counted_items_only():
    assert distinct(list("abca")).value == 3
    assert distinct(list("abca"), counted=[False, True, False, True]).value == 2
    assert distinct(list("abca"), counted=[False] * 4).value == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40))
def test_interval_of_distinct_holds_the_number_and_is_possible(items):
    labels, counted = [label for label, _ in items], [flag for _, flag in items]
    estimate = distinct(labels, counted=counted)
    assert is_within(estimate)
    assert estimate.interval[0] >= 0
    assert estimate.interval[1] <= len(items)


@pytest.mark.parametrize("num_kinds", [20, 200, 5000])
def test_interval_of_distinct_covers_what_another_sample_would_have(num_kinds):
    # The number of labels among 300 draws from many kinds of unlike probability; its expectation is known.
    weights = 1 / np.arange(1, num_kinds + 1)
    weights /= weights.sum()
    expected = float((1 - (1 - weights) ** 300).sum())
    hits = 0
    for seed in range(200):
        low, high = distinct(np.random.default_rng(seed).choice(num_kinds, size=300, p=weights).tolist()).interval
        hits += low - 0.5 <= expected <= high + 0.5  # it is a whole number
    assert hits >= 180


def test_encoder_that_is_not_there_blames_its_option(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.options\.diversity_encoder = "):
        sentence_encoder(str(tmp_path / "nowhere"))(["text"])


@given(st.lists(WORDS, min_size=2, max_size=8))
def test_self_bleu_is_sacrebleus_sentence_bleu_with_the_others_as_references(texts):
    for i, score in enumerate(self_bleu_scores(texts)):
        expected = sacrebleu.sentence_bleu(
            texts[i],
            [text for j, text in enumerate(texts) if j != i],
            smooth_method="exp",
            tokenize="none",
            use_effective_order=True,
        )
        assert score == pytest.approx(expected.score / 100)


def test_self_bleu_of_copies_is_one_and_of_texts_without_a_common_word_zero():
    assert self_bleu(["say a rude word, please"] * 3).value == pytest.approx(1.0)
    assert self_bleu(["a b c", "d e f"]).value == 0.0


def test_self_bleu_needs_two_texts():
    assert self_bleu([]) is None
    assert self_bleu(["alone"]) is None


def test_interval_of_self_bleu_holds_the_estimate_and_narrows_with_more_texts():
    generator = random.Random(0)
    texts = [" ".join(generator.choices([f"w{i}" for i in range(40)], k=8)) for _ in range(400)]
    few, many = self_bleu(texts[:100]), self_bleu(texts)
    assert is_within(few)
    assert is_within(many)
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]

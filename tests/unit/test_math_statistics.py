from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tbactl_math.statistics import clustered_interval, pass_at_k, wilson_interval


@pytest.mark.parametrize(
    ("mean", "num_observations", "low", "high"),
    [(0.5, 100, 0.40383, 0.59617), (0.0, 10, 0.0, 0.27753), (1.0, 10, 0.72247, 1.0), (0.2, 500, 0.16725, 0.23734)],
)
def test_wilson_interval_matches_published_values(mean, num_observations, low, high):
    assert wilson_interval(mean, num_observations=num_observations) == pytest.approx((low, high), abs=1e-4)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=50))
@example([1.0, 0.9999999999999999])
def test_clustered_interval_holds_the_mean_and_has_length(values):
    low, high = clustered_interval(values)
    mean = sum(values) / len(values)
    assert 0.0 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1.0
    assert high - low > 0.0


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=20, max_size=200))
def test_clustered_interval_of_single_samples_is_about_wilsons(values):
    mean = sum(values) / len(values)
    expected = wilson_interval(mean, num_observations=len(values))
    assert clustered_interval(values) == pytest.approx(expected, abs=0.02)


@pytest.mark.fault("I-82")
@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(num_samples, data):
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    subsets = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), k))
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))

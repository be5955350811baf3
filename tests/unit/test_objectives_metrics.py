from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tbactl.objectives.metrics import Metric, Reduction, reduce_metrics

VALUES = torch.tensor([1.0, 2.0, 2.0, 7.0])


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", 3.0), ("rms", 14.5**0.5), ("std", 5.5**0.5), ("effective_share", 144 / (4 * 58))],
)
@pytest.mark.parametrize("split", [0, 1, 3])
def test_parts_of_unequal_size_reduce_to_the_value_over_all(reduction: Reduction, expected: float, split: int) -> None:
    parts = [{"a/b": Metric.of(part, reduction=reduction)} for part in (VALUES[:split], VALUES[split:])]
    assert reduce_metrics(parts) == {"a/b": pytest.approx(expected)}


def test_metric_of_a_masked_tensor_counts_only_what_the_mask_keeps() -> None:
    metric = Metric.of(
        torch.tensor([[1.0, float("nan")], [3.0, 5.0]]), where=torch.tensor([[True, False], [True, True]])
    )
    assert reduce_metrics([{"a/b": metric}]) == {"a/b": 3.0}


def test_truth_values_give_their_share() -> None:
    assert reduce_metrics([{"a/share": Metric.of(torch.tensor([True, False, False, False]))}]) == {"a/share": 0.25}


def test_standard_deviation_of_equal_values_is_zero_and_not_nan() -> None:
    assert reduce_metrics([{"a": Metric.of(torch.full((3,), 0.1), reduction="std")}])["a"] == pytest.approx(
        0.0, abs=1e-8
    )


def test_metric_to_which_nothing_contributed_is_left_out() -> None:
    parts = [{"empty": Metric.of(torch.zeros(0)), "full": Metric.of(torch.ones(1))}]
    assert reduce_metrics(parts) == {"full": 1.0}


def test_all_reduce_is_called_once_and_its_sums_are_used() -> None:
    calls = []

    def other_rank_has_the_same(moments: Tensor) -> None:
        calls.append(moments.shape)
        moments.add_(torch.tensor([4.0, 0.0, 0.0, 4.0, 28.0, 196.0], dtype=torch.float64))

    metrics = {"b": Metric.of(VALUES), "a": Metric.of(VALUES)}
    assert reduce_metrics([metrics], all_reduce=other_rank_has_the_same) == {"a": 1.5, "b": 5.0}
    assert calls == [(6,)]


def test_parts_that_report_different_names_are_refused() -> None:
    with pytest.raises(AssertionError, match="same metrics"):
        reduce_metrics([{"a": Metric.of(VALUES)}, {"b": Metric.of(VALUES)}])


def quantiles(*parts: Tensor) -> dict[str, float]:
    return reduce_metrics(
        [{"a/p50": Metric.of(part, reduction="p50"), "a/p95": Metric.of(part, reduction="p95")} for part in parts]
    )


@pytest.mark.parametrize("split", [0, 1, 400])
def test_quantiles_over_parts_are_those_of_all_values_within_three_percent(split: int) -> None:
    values = torch.distributions.LogNormal(-5.0, 3.0).sample((1001,))
    measured = quantiles(values[:split], values[split:])
    for name, share in (("a/p50", 0.5), ("a/p95", 0.95)):
        assert measured[name] == pytest.approx(values.quantile(share).item(), rel=0.06)


def test_quantiles_of_zeros_and_of_huge_values_stay_in_range() -> None:
    assert quantiles(torch.zeros(3)) == {"a/p50": 0.0, "a/p95": 0.0}
    assert quantiles(torch.full((3,), 1e30))["a/p50"] == pytest.approx(1e4, rel=0.03)
    assert quantiles(torch.zeros(0)) == {}


def test_quantiles_beside_moments_reduce_in_one_call() -> None:
    calls = []
    both = {"a": Metric.of(VALUES), "b": Metric.of(VALUES, reduction="p50")}
    metrics = reduce_metrics([both], all_reduce=lambda moments: calls.append(moments.shape))
    assert metrics == {"a": 3.0, "b": pytest.approx(2.0, rel=0.03)}
    assert len(calls) == 1

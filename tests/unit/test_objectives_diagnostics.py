"""Diagnostics against plain numpy on the unmasked tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tbactl.objectives.batch import ObjectiveBatch
from tbactl.objectives.diagnostics import batch_metrics
from tbactl.objectives.metrics import reduce_metrics
from tests.support.documented_metrics import documented_metrics
from tests.support.objective_batches import one_token_batch, random_batch, select_rows

BATCH = random_batch((3, 4, 2), num_tokens=6, seed=3)


def measured(batch: ObjectiveBatch) -> dict[str, float]:
    return reduce_metrics([batch_metrics(batch)])


def rows(batch: ObjectiveBatch, numerator: str, denominator: str) -> list[np.ndarray]:
    """Log-ratios of each row's completion tokens."""
    ratio = (getattr(batch, numerator) - getattr(batch, denominator)).detach().numpy()
    return [row[mask] for row, mask in zip(ratio, batch.completion_mask.numpy(), strict=True)]


def test_kl_estimators_are_schulmans_for_sequences_and_tokens() -> None:
    log_ratios = rows(BATCH, "policy_logprobs", "reference_logprobs")
    k3 = [np.exp(-row) - 1 + row for row in log_ratios]
    expected = {
        "objective/kl/mean": np.mean([row.sum() for row in log_ratios]),
        "objective/kl_k3/mean": np.mean([row.sum() for row in k3]),
        "objective/kl_per_token/mean": np.concatenate(log_ratios).mean(),
        "objective/kl_k3_per_token/mean": np.concatenate(k3).mean(),
    }
    metrics = measured(BATCH)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


@pytest.mark.fault("I-24")
def test_mismatch_with_the_searcher_is_told_by_quantiles_share_and_effective_sample_size() -> None:
    log_ratios = rows(BATCH, "policy_logprobs", "behavior_logprobs")
    tokens = np.concatenate(log_ratios)
    weights = np.exp([row.sum() for row in log_ratios])
    metrics = measured(BATCH)
    # Quantiles of the lower value: bins do not interpolate between two tokens.
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        expected = np.quantile(np.abs(tokens), share, method="inverted_cdf")
        assert metrics[f"objective/behavior_logprob_difference/{name}"] == pytest.approx(expected, rel=0.03)
    assert metrics["objective/behavior_ratio_outside/share"] == pytest.approx(
        np.mean((np.exp(tokens) < 0.9) | (np.exp(tokens) > 1.1))
    )
    assert metrics["objective/effective_sample_size/share"] == pytest.approx(
        weights.sum() ** 2 / (len(weights) * np.square(weights).sum())
    )


def test_on_policy_data_has_no_mismatch_and_full_sample_size() -> None:
    metrics = measured(replace(BATCH, behavior_logprobs=BATCH.policy_logprobs.detach()))
    assert metrics["objective/behavior_logprob_difference/p95"] == 0.0
    assert metrics["objective/behavior_ratio_outside/share"] == 0.0
    assert metrics["objective/effective_sample_size/share"] == pytest.approx(1.0)


def test_groups_of_equal_rewards_are_counted() -> None:
    batch = one_token_batch(policy=[-1.0] * 5, rewards=[1.0, 1.0, 0.0, 1.0, 2.0], group_index=[0, 0, 1, 1, 2])
    assert measured(batch)["objective/equal_reward_groups/share"] == pytest.approx(2 / 3)


def test_micro_batches_report_together_what_the_whole_batch_reports() -> None:
    halves = [torch.nonzero(BATCH.group_index == 0)[:, 0], torch.nonzero(BATCH.group_index > 0)[:, 0]]
    parts = [batch_metrics(select_rows(BATCH, half)) for half in halves]
    assert reduce_metrics(parts) == pytest.approx(measured(BATCH))


def test_a_diverged_policy_gives_numbers_all_the_same() -> None:
    batch = one_token_batch(policy=[-5000.0, -1.0], reference=[-1.0, -5000.0], rewards=[0.0, 1.0], group_index=[0, 0])
    assert all(np.isfinite(value) for value in measured(batch).values())


def test_all_names_are_documented() -> None:
    assert measured(BATCH).keys() <= documented_metrics()

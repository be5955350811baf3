from __future__ import annotations

import pytest

from tbactl.config.loading import load_recipe
from tbactl.config.sections import ObjectiveSection
from tbactl.objectives.schedules import beta_at, target_at, target_metrics

PAPER_FIGURE_1 = ObjectiveSection(beta=0.014, beta_final=0.004, beta_steps=500)


@pytest.mark.fault("R-06")
@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.014), (1, 0.01398), (250, 0.009), (499, 0.00402), (500, 0.004), (10_000, 0.004)]
)
def test_beta_goes_linearly_to_its_final_value_and_stays(step: int, expected: float) -> None:
    assert beta_at(PAPER_FIGURE_1, step=step) == pytest.approx(expected, rel=1e-12)


def test_beta_never_rises_and_never_passes_its_final_value_on_a_falling_schedule() -> None:
    values = [beta_at(PAPER_FIGURE_1, step=step) for step in range(600)]
    assert values == sorted(values, reverse=True)
    assert (values[0], values[-1]) == (0.014, 0.004)


def test_beta_may_rise() -> None:
    assert beta_at(ObjectiveSection(beta=0.1, beta_final=0.3, beta_steps=2), step=1) == pytest.approx(0.2)


def test_beta_without_a_final_value_is_constant() -> None:
    assert beta_at(ObjectiveSection(beta=0.05, beta_steps=10), step=7) == 0.05


def test_beta_over_zero_steps_has_its_final_value_at_once() -> None:
    assert beta_at(ObjectiveSection(beta=0.05, beta_final=0.01), step=0) == 0.01


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (31, 0.769921875), (32, 0.05), (33, 0.05), (127, 0.05), (128, 0.05)]
)
def test_beta_of_the_papers_tldr_runs_leaves_its_line_for_the_final_value(step: int, expected: float) -> None:
    objective = load_recipe("tldr", profile="gpu").run_config.objective
    assert beta_at(objective, step=step) == pytest.approx(expected, rel=1e-12)


@pytest.mark.fault("R-06")
def test_step_before_the_first_is_refused() -> None:
    with pytest.raises(AssertionError, match="it is >= 0; got -1"):
        beta_at(PAPER_FIGURE_1, step=-1)


RED_TEAM = ObjectiveSection(  # arXiv 2405.18540 with Llama
    beta=0.05,
    reference_temperature_final=1.2,
    reference_temperature_steps=2000,
    target_temperature=2.0,
    target_temperature_final=1.0,
    target_temperature_steps=1000,
)


def test_target_without_temperatures_is_the_configured_beta_and_the_reference_itself() -> None:
    target = target_at(PAPER_FIGURE_1, step=123)
    assert target.beta == beta_at(PAPER_FIGURE_1, step=123)
    assert target.reference_exponent == 1.0
    assert target_metrics(PAPER_FIGURE_1, step=0) == {"objective/beta/value": 0.014}


@pytest.mark.parametrize(
    ("step", "gamma", "temperature"), [(0, 1.0, 2.0), (500, 1.05, 1.5), (1000, 1.1, 1.0), (2000, 1.2, 1.0)]
)
def test_target_temperatures_go_linearly_to_their_final_values(step: int, gamma: float, temperature: float) -> None:
    target = target_at(RED_TEAM, step=step)
    assert target.beta == pytest.approx(0.05 * temperature, rel=1e-12)
    assert target.reference_exponent == pytest.approx(1 / (gamma * temperature), rel=1e-12)
    metrics = target_metrics(RED_TEAM, step=step)
    assert metrics["objective/beta/value"] == 0.05
    assert metrics["objective/reference_temperature/value"] == pytest.approx(gamma, rel=1e-12)
    assert metrics["objective/target_temperature/value"] == pytest.approx(temperature, rel=1e-12)

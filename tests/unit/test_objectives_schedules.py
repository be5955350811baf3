from __future__ import annotations

import pytest

from tbactl.config.sections import ObjectiveSection
from tbactl.objectives.schedules import beta_at

PAPER_FIGURE_1 = ObjectiveSection(beta=0.014, beta_final=0.004, beta_steps=500)


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


def test_step_before_the_first_is_refused() -> None:
    with pytest.raises(AssertionError, match="it is >= 0; got -1"):
        beta_at(PAPER_FIGURE_1, step=-1)

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbactl.dashboard.plots import BLOCKS, Range, binned, cell, curve, fitting_range, gauge, histogram, sparkline

numbers = st.floats(min_value=-1e6, max_value=1e6)
UNIT = Range(0.0, 1.0)


def dots_of(lines: list[str]) -> int:
    return sum((ord(character) - 0x2800).bit_count() for line in lines for character in line if character != " ")


@given(points=st.lists(st.tuples(numbers, numbers), max_size=40), width=st.integers(1, 60), height=st.integers(1, 12))
def test_curve_has_exactly_the_size_asked_for(points: list[tuple[float, float]], width: int, height: int):
    lines = curve(sorted(points), width=width, height=height, x=Range(-1e5, 1e5), y=Range(-1e5, 1e5))
    assert len(lines) == height and all(len(line) == width for line in lines)
    assert (dots_of(lines) > 0) == bool(points)


def test_rising_diagonal_runs_from_the_lower_left_to_the_upper_right():
    lines = curve([(i / 100, i / 100) for i in range(101)], width=10, height=5, x=UNIT, y=UNIT)
    assert lines[-1][0] != " " and lines[0][-1] != " " and lines[0][0] == " " and lines[-1][-1] == " "


def test_single_point_is_one_dot_and_a_jump_is_connected():
    assert dots_of(curve([(0.5, 0.5)], width=10, height=5, x=UNIT, y=UNIT)) == 1
    assert dots_of(curve([(0.5, 0.0), (0.6, 1.0)], width=10, height=5, x=UNIT, y=UNIT)) >= 20


@given(values=st.lists(numbers, max_size=200), width=st.integers(1, 50))
def test_sparkline_is_as_long_as_its_values_or_its_width(values: list[float], width: int):
    assert len(sparkline(values, width=width)) == min(len(values), width)


def test_sparkline_is_lowest_at_the_smallest_and_full_at_the_largest_value():
    assert sparkline([0.0, 7.0, 3.0], width=10) == BLOCKS[1] + BLOCKS[8] + BLOCKS[4]


@given(values=st.lists(numbers, min_size=1, max_size=300), width=st.integers(1, 50))
def test_bins_keep_the_mean_when_they_are_equally_large(values: list[float], width: int):
    bins = binned(values, width)
    assert len(bins) == min(len(values), width)
    if len(values) % len(bins) == 0:
        assert math.isclose(sum(bins) / len(bins), sum(values) / len(values), rel_tol=1e-6, abs_tol=1e-6)


def test_histogram_shows_the_smallest_count_and_marks_empty_bins():
    assert histogram([0, 1, 1000]) == "\u00b7" + BLOCKS[1] + BLOCKS[8]
    assert histogram([0, 0]) == "\u00b7\u00b7" and histogram([]) == ""


@pytest.mark.parametrize(("fraction", "full"), [(-1.0, 0), (0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10)])
def test_gauge_is_full_in_proportion(fraction: float, full: int):
    assert gauge(fraction, width=10) == "\u2501" * full + "\u2500" * (10 - full)


@given(values=st.lists(numbers, max_size=20))
def test_fitting_range_holds_all_values(values: list[float]):
    fitted = fitting_range(values)
    assert fitted.low < fitted.high and all(fitted.low <= value <= fitted.high for value in values)


@given(point=st.tuples(numbers, numbers))
def test_cell_lies_inside_the_plot(point: tuple[float, float]):
    row, column = cell(point, width=7, height=3, x=UNIT, y=UNIT)
    assert 0 <= row < 3 and 0 <= column < 7

"""Lines through a few points, and errors that learn from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from fixtures.analysis.lines import Estimate, Scatter, bounds, fit, refutable_scatter, scatter

DEPTHS = (1, 2, 3, 5, 10)


def points(values: dict[int, float], relative: float = 0.0) -> dict[int, Estimate]:
    return {x: Estimate(v, v * relative) for x, v in values.items()}


def test_four_points_on_a_line_give_it_back() -> None:
    line = fit(points({1: 6.0, 2: 7.0, 3: 8.0, 5: 10.0}), bend=0.01)
    assert (line.fixed.value, line.slope.value) == (pytest.approx(5.0), pytest.approx(1.0))
    assert line.at(10).value == pytest.approx(15.0)


def test_two_points_make_a_line_whose_error_is_taken_for_granted() -> None:
    line = fit(points({1: 10.0, 2: 10.0}), bend=0.01)
    assert line.slope.error == pytest.approx(0.1 * math.sqrt(2))
    assert (line.bend, line.freedom) == (0.01, 2)


def test_one_point_makes_no_line() -> None:
    with pytest.raises(ValueError, match="a line takes two points"):
        fit(points({2: 7.0}), bend=0.01)


def test_a_point_with_a_large_error_hardly_moves_the_line() -> None:
    known = points({1: 6.0, 2: 7.0, 3: 8.0})
    assert fit({**known, 5: Estimate(20.0, 1000.0)}, bend=0.01).at(5).value == pytest.approx(10.0, abs=1e-3)


def test_the_line_and_its_errors_are_those_of_weighted_least_squares() -> None:
    """By numpy's matrices."""
    seen = {1: Estimate(6.1, 0.05), 2: Estimate(6.9, 0.1), 3: Estimate(8.2, 0.02), 5: Estimate(9.9, 0.2)}
    line = fit(seen, bend=0.01)
    design = np.array([[1.0, x] for x in seen])
    values = np.array([p.value for p in seen.values()])
    weights = np.diag([1 / (p.error**2 + (0.01 * p.value) ** 2) for p in seen.values()])
    covariance = np.linalg.inv(design.T @ weights @ design)
    slow = covariance @ design.T @ weights @ values
    off = values - design @ slow
    covariance *= (2 + off @ weights @ off) / (2 + 2)
    assert (line.fixed.value, line.slope.value) == pytest.approx(tuple(slow))
    assert (line.fixed.error, line.slope.error) == pytest.approx(tuple(np.sqrt(np.diag(covariance))))
    assert line.covariance == pytest.approx(covariance[0, 1])


def test_errors_stay_as_granted_where_points_scatter_as_granted_and_grow_where_they_scatter_more() -> None:
    assert scatter(0.0, 0) == Scatter(1.0, 2)
    assert scatter(3.0, 3) == Scatter(1.0, 5)
    assert scatter(1.0, 2) == Scatter(pytest.approx(math.sqrt(3 / 4)), 4)  # type: ignore[arg-type]


def test_points_that_contradict_what_was_granted_stand_alone() -> None:
    assert refutable_scatter(32.0, 2) == Scatter(4.0, 2)
    assert refutable_scatter(1.0, 2) == scatter(1.0, 2)
    assert refutable_scatter(0.0, 0) == scatter(0.0, 0)


def test_bounds_are_students() -> None:
    seen = bounds(Estimate(10.0, 2.0), freedom=4, tail=0.025)
    assert seen.upper == pytest.approx(10 + 2 * 2.776, abs=1e-3)
    assert bounds(Estimate(10.0, 2.0), freedom=math.inf, tail=0.025).lower == pytest.approx(10 - 2 * 1.96, abs=1e-2)


@pytest.mark.parametrize("bend", [0.0, 0.005, 0.02, 0.08])
def test_a_point_left_out_lies_in_its_interval_as_often_as_promised(bend: float) -> None:
    """Cycles off the line by 0 to 8 %, where 0.5 % is taken for granted: 95 % promised."""
    rng, hit, nights = np.random.default_rng(3), 0, 400
    for _ in range(nights):
        true = {d: (5.6 + 0.25 * d) * (1 + bend * rng.normal()) for d in DEPTHS}
        seen = {d: Estimate(v * (1 + 0.001 * rng.normal()), 0.001 * v) for d, v in true.items()}
        left = int(rng.choice(DEPTHS))
        line = fit({d: p for d, p in seen.items() if d != left}, bend=0.005)
        interval = bounds(line.at(left), line.freedom, 0.025)
        hit += interval.lower <= true[left] <= interval.upper
    assert hit / nights >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / nights)


def test_on_a_steady_gpu_the_interval_between_measured_depths_is_narrow() -> None:
    """An 8B shape on one H200: 5.91, 6.15 and 6.93 ms at 1, 2 and 5 steps."""
    line = fit(points({1: 5.91, 2: 6.15, 5: 6.93}, relative=0.001), bend=0.005)
    seen = bounds(line.at(3), line.freedom, 0.025)
    assert (seen.upper - seen.lower) / 2 / seen.centre < 0.02
    assert line.freedom == 3
    assert t.isf(0.025, line.freedom) == pytest.approx(3.18, abs=0.01)

"""The few tails and quantiles that are used, against scipy.stats."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fixtures.analysis import distributions

CHANCES = (0.3, 0.025, 0.005, 1e-4, 1e-9)


@pytest.mark.parametrize("chance", CHANCES)
def test_the_normal_is_scipys(chance: float) -> None:
    assert distributions.normal_above(chance) == pytest.approx(stats.norm.isf(chance), rel=1e-9)


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("freedom", [1, 2, 5, 30.5, math.inf])
def test_students_t_is_scipys(chance: float, freedom: float) -> None:
    assert distributions.student_above(chance, freedom) == pytest.approx(stats.t.isf(chance, freedom), rel=1e-9)


@pytest.mark.parametrize(("value", "freedom"), [(0.1, 1), (3.2, 4), (60.0, 10)])
def test_chi_squared_is_scipys(value: float, freedom: int) -> None:
    assert distributions.chi_squared_beyond(value, freedom) == pytest.approx(stats.chi2.sf(value, freedom), rel=1e-9)


@pytest.mark.parametrize("count", [-1, 0, 3, 20])
def test_the_binomial_is_scipys(count: int) -> None:
    assert distributions.binomial_beyond(count, 20, 0.02) == pytest.approx(stats.binom.sf(count, 20, 0.02), rel=1e-9)


@pytest.mark.parametrize("trials", [0, 1, 7, 8, 20, 48, 500, 3000])
@pytest.mark.parametrize("chance", [0.5, *CHANCES])
def test_the_fewest_heads_are_the_most_that_stay_within_the_chance(trials: int, chance: float) -> None:
    q = distributions.fewest_heads(trials, chance)
    assert q == -1 or stats.binom.cdf(q, trials, 0.5) <= chance
    assert stats.binom.cdf(q + 1, trials, 0.5) > chance


def test_heads_by_head() -> None:
    """Of three coins none shows with 1/8, at most one with 1/2."""
    assert distributions.fewest_heads(3, 0.125) == 0
    assert distributions.fewest_heads(3, 0.12) == -1
    assert distributions.fewest_heads(3, 0.5) == 1

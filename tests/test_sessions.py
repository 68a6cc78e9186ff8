"""How far sessions lie apart, and what may be claimed because of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.analysis.sessions import Spread, honest_delta, spread


def test_two_boots_of_one_day_differ_by_root_two_deviations() -> None:
    seen = spread([("mon", 0.0), ("mon", 2.0)])
    assert (seen.boot, seen.day) == (pytest.approx(2**0.5), 0.0)
    assert (seen.boots, seen.days) == (2, 1)


def test_days_with_one_boot_each_leave_all_to_the_days() -> None:
    seen = spread([("mon", -1.0), ("tue", 0.0), ("wed", 1.0)])
    assert (seen.boot, seen.day) == (0.0, pytest.approx(1.0))


def test_boots_explain_days_that_lie_no_further_apart() -> None:
    seen = spread([("mon", -1.0), ("mon", 1.0), ("tue", -1.0), ("tue", 1.0)])
    assert (seen.boot, seen.day) == (pytest.approx(2**0.5), 0.0)


def test_days_that_lie_further_apart_have_a_deviation_of_their_own() -> None:
    """Days at ±10 with boots at ±1 around them: 200 between days, less half of the boots' 2."""
    seen = spread([("mon", -11.0), ("mon", -9.0), ("tue", 9.0), ("tue", 11.0)])
    assert seen.boot == pytest.approx(2**0.5)
    assert seen.day == pytest.approx((200 - 1) ** 0.5)


def test_without_boots_nothing_is_known() -> None:
    assert spread([]) == Spread(0.0, 0.0, 0, 0)
    assert not spread([]).known


def test_both_components_are_found_again_on_the_average() -> None:
    rng = np.random.default_rng(7)
    estimates = []
    for _ in range(2000):
        days = rng.normal(0, 0.003, 5)
        levels = [(str(d), days[d] + rng.normal(0, 0.001)) for d in range(5) for _ in range(1 + d % 3)]
        estimates.append(spread(levels))
    assert np.mean([s.boot**2 for s in estimates]) == pytest.approx(0.001**2, rel=0.05)
    assert np.mean([s.day**2 for s in estimates]) == pytest.approx(0.003**2, rel=0.05)


def test_ten_boots_of_three_days_are_the_least_that_is_known() -> None:
    assert Spread(0.001, 0.001, boots=10, days=3).known
    assert not Spread(0.001, 0.001, boots=9, days=3).known
    assert not Spread(0.001, 0.001, boots=10, days=2).known


def test_one_percent_may_be_claimed_while_nothing_is_known() -> None:
    assert honest_delta(spread([]), asked=0.005) == 0.01
    assert honest_delta(spread([]), asked=0.025) == 0.025


def test_what_may_be_claimed_is_five_deviations_and_never_less_than_was_asked() -> None:
    quiet, loud = Spread(0.0003, 0.0004, 10, 3), Spread(0.003, 0.004, 10, 3)
    assert honest_delta(quiet, asked=0.005) == 0.005
    assert honest_delta(replace(quiet, gpus=0.005), asked=0.005) == pytest.approx(0.025, rel=0.01)
    assert honest_delta(loud, asked=0.005) == pytest.approx(0.025)

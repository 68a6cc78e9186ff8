"""How far sessions lie apart, and what may be claimed because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fixtures.analysis.intervals import Outcome
from fixtures.analysis.sessions import Spread, honest_delta, spread
from tests.kit.days import drawn, nights


def test_two_boots_of_one_day_differ_by_root_two_deviations() -> None:
    seen = spread([("mon", 0.0), ("mon", 2.0)])
    assert (seen.boot, seen.day) == (pytest.approx(2**0.5), 0.0)
    assert (seen.boots, seen.days) == (2, 1)


def test_days_with_one_boot_each_leave_all_to_the_days() -> None:
    seen = spread([("mon", -1.0), ("tue", 0.0), ("wed", 1.0)])
    assert (seen.boot, seen.day) == (0.0, pytest.approx(1.0))


def test_boots_explain_days_that_lie_no_further_apart_and_then_all_of_them_tell_of_boots() -> None:
    seen = spread([("mon", -1.0), ("mon", 1.0), ("tue", -1.0), ("tue", 1.0)])
    assert (seen.boot, seen.day, seen.freedom) == (pytest.approx((4 / 3) ** 0.5), 0.0, 3)


def test_days_that_lie_further_apart_have_a_deviation_of_their_own() -> None:
    """Days at ±10 with boots at ±1 around them: 200 between days, less half of the boots' 2."""
    seen = spread([("mon", -11.0), ("mon", -9.0), ("tue", 9.0), ("tue", 11.0)])
    assert seen.boot == pytest.approx(2**0.5)
    assert seen.day == pytest.approx((200 - 1) ** 0.5)


def test_without_boots_nothing_is_known() -> None:
    assert spread([]) == Spread(0.0, 0.0, 0, 0, freedom=1)
    assert not spread([]).known


def test_the_variance_between_boots_of_different_days_is_found_again_on_the_average() -> None:
    rng = np.random.default_rng(7)
    estimates = [drawn(rng, (1, 2, 3, 1, 2), 0.003, 0.001)[0] for _ in range(2000)]
    assert np.mean([s.total**2 for s in estimates]) == pytest.approx(0.003**2 + 0.001**2, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [((2,) * 5, 4, 4.01), ((10,), 9, 9), ((1,) * 10, 9, 9), ((2, 1, 1, 1, 1, 1, 1, 1, 1), 8, 9), ((4, 3, 3), 2, 3)],
)
def test_freedom_is_that_of_the_days_where_days_lie_apart_and_boots_do_not(
    sizes: Sequence[int], least: float, most: float
) -> None:
    seen, _ = drawn(np.random.default_rng(3), sizes, 0.01, 0.0001)
    assert least <= seen.freedom <= most


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


def test_few_days_far_apart_are_not_known_until_they_refute_what_is_taken_for_granted() -> None:
    few = Spread(0.0005, 0.001, 10, 3, freedom=2.2)
    assert few.claim > 0.01
    assert not few.known
    assert honest_delta(few, asked=0.005) == 0.01
    assert Spread(0.0005, 0.001, 10, 3, freedom=20).known
    further = Spread(0.001, 0.003, 10, 3, freedom=2.2)
    assert further.known
    assert honest_delta(further, asked=0.005) == further.claim > 5 * further.total


DAYS = {"three days": (4, 3, 3), "five": (2,) * 5, "nine, one with two boots": (2, *(1,) * 8), "ten": (1,) * 10}


@pytest.mark.parametrize("sizes", DAYS.values(), ids=DAYS)
@pytest.mark.parametrize(("day", "boot"), [(0.001, 0.0005), (0.0005, 0.001), (0.002, 0.001)])
def test_a_quiet_night_holds_and_a_change_of_what_may_be_claimed_is_seen_however_few_days_tell_of_it(
    sizes: Sequence[int], day: float, boot: float
) -> None:
    seen, count = nights(sizes, day, boot, count=400), 400
    assert seen.quiet[Outcome.HOLDS] >= 0.97 * count
    assert seen.quiet[Outcome.FALLS_SHORT] <= 0.01 * count
    assert seen.slower[Outcome.FALLS_SHORT] >= 0.92 * count

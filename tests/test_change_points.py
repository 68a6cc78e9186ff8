"""Change points and drift: a slow twin of the statistic, series whose changes are known, and how often noise is cut."""

from __future__ import annotations

import json
import time
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from fixtures.analysis import change_points
from fixtures.analysis.change_points import LEAST_NIGHTS, Array, course, divergences, mann_kendall
from tests.kit.builders import RECORDINGS

NOISE = 0.002
"""Of a night, as a share: what boots of one day differ by on a quiet host."""


def nights(seed: int, count: int, noise: float = NOISE) -> Array:
    return 100 * (1 + noise * np.random.default_rng(seed).normal(size=count))


def mean_distance(one: Array, other: Array) -> float:
    return fmean(abs(x - y) for x, y in product(one.tolist(), other.tolist()))


def slow_divergence(left: Array, right: Array) -> float:
    """The energy distance as it is defined, pair by pair."""
    m, n = len(left), len(right)
    apart = 2 * mean_distance(left, right) - mean_distance(left, left) - mean_distance(right, right)
    return m * n / (m + n) * apart


@pytest.mark.parametrize("seed", range(5))
def test_the_divergence_is_the_one_that_pairs_of_nights_give(seed: int) -> None:
    series = np.round(nights(seed, 14), 1)  # rounded: ties
    expected = [slow_divergence(series[:k], series[k:]) for k in range(LEAST_NIGHTS, len(series) - LEAST_NIGHTS + 1)]
    assert divergences(*change_points._staircase(series)) == pytest.approx(expected)


def test_a_divergence_by_head() -> None:
    """Three nights at 1, three at 3: pairs across are 2 apart, pairs within 0; 3 · 3 / 6 · (2 · 2) = 6."""
    series = np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])
    assert divergences(*change_points._staircase(series)).tolist() == [6.0]


@pytest.mark.parametrize("share", [0.01, -0.01, 0.05])
def test_a_new_level_is_found_on_its_night_and_with_its_size(share: float) -> None:
    series = nights(1, 60)
    series[40:] *= 1 + share
    (change,) = course(series).changes
    assert change.at == pytest.approx(40, abs=1)
    assert change.share == pytest.approx(share, abs=0.0015)


def test_a_verify_that_became_slower_on_the_cpu_engine_is_found_on_its_night() -> None:
    """Real passes of SGLang on a busy machine, where the multiple of the plain server's scatters by 15 %."""
    recorded = json.loads((RECORDINGS / "cpu-sglang-0.5.23" / "trend_slow_verify.json").read_text())
    ratios, lengths, cycles = zip(*recorded["quiet"], *recorded["drill"], strict=True)
    (slower,), (lost,) = course(cycles).changes, course(ratios).changes
    assert slower.at == pytest.approx(12, abs=1)
    assert lost.at == pytest.approx(12, abs=3)
    assert slower.share > 0 > lost.share
    assert course(lengths).changes == ()


def test_two_levels_and_a_return_are_three_changes() -> None:
    series = nights(2, 80)
    series[20:40] *= 0.98
    series[60:] *= 1.03
    seen = course(series)
    assert [change.at for change in seen.changes] == pytest.approx([20, 40, 60], abs=1)
    assert seen.drift is None


def test_exact_figures_change_where_they_do() -> None:
    """Accept length of given prompts doesn't scatter."""
    (change,) = course([2.05] * 9 + [1.95] * 5).changes
    assert (change.at, change.before, change.after) == (9, 2.05, 1.95)


def test_five_nights_of_a_large_change_are_enough() -> None:
    series = nights(3, 35)
    series[30:] *= 0.97
    assert [change.at for change in course(series).changes] == [30]


def test_one_bad_night_is_no_new_level() -> None:
    series = nights(4, 40)
    series[20] *= 0.9
    assert course(series).changes == ()


def test_levels_a_tenth_of_a_percent_apart_are_not_worth_a_mark() -> None:
    series = nights(5, 60, noise=0.0001)
    series[30:] *= 1.001
    assert course(series).changes == ()


def test_a_slow_fall_is_a_drift_and_not_a_flight_of_steps() -> None:
    series = nights(6, 81, noise=0.001)
    series[-21:] *= 1 - 0.012 * np.arange(21) / 20
    seen = course(series)
    assert seen.changes == ()
    assert seen.drift is not None
    assert seen.drift.nights == pytest.approx(21, abs=4)
    assert seen.drift.share == pytest.approx(-0.012, abs=0.002)


def test_a_drift_after_a_new_level_leaves_the_level_standing() -> None:
    series = nights(7, 90, noise=0.001)
    series[30:] *= 1.03
    series[-30:] *= 1 - 0.015 * np.arange(30) / 29
    seen = course(series)
    assert [change.at for change in seen.changes] == [30]
    assert seen.drift is not None
    assert seen.drift.share == pytest.approx(-0.015, abs=0.003)


def test_a_step_is_not_taken_for_a_drift() -> None:
    drifts = 0
    for seed in range(20):
        series = nights(seed, 50)
        series[35:] *= 0.98
        drifts += course(series).drift is not None
    assert drifts == 0


def test_noise_is_cut_as_rarely_as_promised() -> None:
    """0.5 % of series: of 200 one, and four or more with a chance of 2 %."""
    seen = [course(nights(seed, 40), seed=seed) for seed in range(200)]
    assert sum(bool(one.changes) for one in seen) <= 3
    assert sum(one.drift is not None for one in seen) <= 1


def test_a_drift_slower_than_a_nights_tolerance_is_seen_in_most_series() -> None:
    found = 0
    for seed in range(20):
        series = nights(seed, 60)
        series[-21:] *= 1 - 0.012 * np.arange(21) / 20
        found += course(series).drift is not None
    assert found >= 18


@pytest.mark.parametrize("series", [[], [1.0], [1.0] * 5, [1.0] * 100])
def test_too_few_nights_and_equal_ones_have_no_course(series: list[float]) -> None:
    seen = course(series)
    assert (seen.changes, seen.drift) == ((), None)


def test_the_same_series_has_the_same_course() -> None:
    series = nights(8, 50)
    series[25:] *= 1.005
    assert course(series) == course(series)


def test_mann_kendall_by_head() -> None:
    """Ten of ten pairs of five nights rise: z = 9 / √(5 · 4 · 15 / 18)."""
    assert mann_kendall([1, 2, 3, 4, 5]) == pytest.approx(9 / (300 / 18) ** 0.5)
    assert mann_kendall([5, 4, 3, 2, 1]) == pytest.approx(-9 / (300 / 18) ** 0.5)
    assert mann_kendall([1, 1, 1]) == 0


def test_four_hundred_nights_are_looked_at_in_a_second() -> None:
    series = nights(9, 400)
    series[200:] *= 0.99
    began = time.process_time()
    course(series)
    assert time.process_time() - began < 2

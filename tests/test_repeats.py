"""Accept length at a temperature above 0: an interval that holds the true value as often as it says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fixtures.analysis import accept_length
from fixtures.analysis.intervals import Outcome
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.repeats import over_repeats
from tests.kit.builders import measurement, sample

SAMPLED = {"workload": {"temperature": 0.7}}


def of_verifies(*by_prompt: tuple[int, ...], identity: dict[str, object] = SAMPLED) -> Measurement:
    """100 decode tokens in so many verifies, by prompt and repeat."""
    samples = (
        sample(f"p{n}", repeat=r, verifies=v) for n, counts in enumerate(by_prompt) for r, v in enumerate(counts)
    )
    return measurement(2, tuple(samples), identity=identity)


def test_repeats_that_agree_leave_no_doubt() -> None:
    seen = over_repeats(of_verifies((50, 50), (40, 40)), alpha=0.005, beta=0.005)
    assert (seen.lower, seen.centre, seen.upper) == pytest.approx((400 / 180,) * 3)


def test_what_prompts_differ_in_is_no_error() -> None:
    near, far = of_verifies((49, 51), (49, 51)), of_verifies((49, 51), (79, 81))
    widths = [(i.upper - i.lower) / i.centre for i in (over_repeats(m, alpha=0.05, beta=0.05) for m in (near, far))]
    assert widths[1] < widths[0]


def test_the_bounds_are_students_for_the_pooled_deviations() -> None:
    """One verify off at A = 2 makes t − A·v deviate by 2; four samples, a degree of freedom for each prompt."""
    seen = over_repeats(of_verifies((49, 51), (49, 51)), alpha=0.025, beta=0.025)
    error = math.sqrt(4 * (4 * 2**2) / 2) / 200
    assert seen.upper - seen.centre == pytest.approx(4.3027 * error, rel=1e-4)
    assert seen.centre - seen.lower == pytest.approx(4.3027 * error, rel=1e-4)


def test_one_pass_bounds_nothing() -> None:
    seen = over_repeats(of_verifies((50,), (40,)), alpha=0.005, beta=0.005)
    assert (seen.lower, seen.upper) == (-math.inf, math.inf)


def test_the_interval_holds_the_true_value_as_often_as_it_says() -> None:
    """24 prompts of three passes, verifies scattered by 8 %: 5 % of bounds are missed on each side."""
    rng = np.random.default_rng(5)
    means = rng.uniform(35, 65, size=24)
    missed, trials = [0, 0], 1000
    for _ in range(trials):
        seen = over_repeats(
            of_verifies(*(tuple(rng.normal(m, 0.08 * m, 3).round().astype(int)) for m in means)), alpha=0.05, beta=0.05
        )
        true = 100 / means.mean()
        missed[0] += true < seen.lower
        missed[1] += true > seen.upper
    assert missed == [pytest.approx(0.05 * trials, abs=4 * math.sqrt(0.05 * 0.95 * trials))] * 2


@pytest.mark.parametrize(
    ("floor", "outcome"), [(1.8, Outcome.HOLDS), (2.2, Outcome.FALLS_SHORT), (2.0, Outcome.UNDECIDED)]
)
def test_a_floor_of_accept_length_is_judged_by_that_interval(floor: float, outcome: Outcome) -> None:
    seen = accept_length.verdict(of_verifies(*[(49, 50, 51)] * 8), floor)
    assert seen.outcome is outcome
    assert "Decoding samples, so repeats differ: interval" in seen.message


def test_greedy_counts_that_moved_are_told_as_before() -> None:
    greedy = replace(of_verifies((49, 51), (50, 50)), identity={})
    assert "Counts of 1 prompt moved between passes" in accept_length.verdict(greedy, 1.5).message

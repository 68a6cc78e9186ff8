"""Acceptance by position, against counting verify by verify."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fixtures.analysis.measurement import Measurement
from fixtures.analysis.positions import (
    Tally,
    accept_length,
    added,
    histograms,
    pooled,
    rate_change,
    rate_interval,
    rates,
    sampling_error,
    survival,
    tail,
    tallies,
)
from fixtures.pairs import chain
from tests.kit.builders import measurement, sample
from tests.kit.nights import counts

RIGHT = counts("right")


def with_histograms(*given: tuple[int, ...] | None, depth: int = 2) -> Measurement:
    samples = (replace(sample("p", repeat=k), accepted_histogram=h) for k, h in enumerate(given))
    return measurement(depth, tuple(samples))


def tallies_slow(histogram: tuple[int, ...]) -> list[Tally]:
    """Verify by verify."""
    verifies = [drafts for drafts, count in enumerate(histogram) for _ in range(count)]
    return [Tally(sum(a >= k - 1 for a in verifies), sum(a >= k for a in verifies)) for k in range(1, len(histogram))]


# Histograms


def test_of_ten_verifies_six_accept_the_first_draft_and_four_of_those_the_second() -> None:
    assert tallies((4, 2, 4)) == (Tally(10, 6), Tally(6, 4))
    assert rates((4, 2, 4)) == pytest.approx((0.6, 4 / 6))


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_tallies_are_those_that_counting_verifies_gives(depth: int) -> None:
    for by_depth in RIGHT.values():
        assert list(tallies(by_depth[depth])) == tallies_slow(by_depth[depth])


def test_a_position_that_no_verify_reached_has_no_rate() -> None:
    assert math.isnan(rates((7, 0, 0))[1])


def test_zeros_that_the_server_leaves_out_are_put_back() -> None:
    assert added([(3, 1), (2,)], least=4) == (5, 1, 0, 0)
    assert histograms(with_histograms((5, 2), (5, 2))) == {"p": (5, 2, 0)}


def test_passes_are_averaged_since_greedy_passes_tell_nothing_new() -> None:
    assert histograms(with_histograms((4, 2, 4), (6, 2, 2))) == {"p": (5, 2, 3)}


def test_one_sample_without_a_histogram_makes_all_unknown() -> None:
    assert histograms(with_histograms((4, 2, 4), None)) is None


def test_depths_are_pooled_position_by_position() -> None:
    assert pooled({1: (4, 6), 2: (4, 2, 4)}) == (Tally(20, 12), Tally(6, 4))


# The tail


def test_positions_that_cannot_be_told_apart_make_the_tail_together() -> None:
    together, count = tail([Tally(1000, 600), Tally(600, 300), Tally(300, 150), Tally(150, 78)])
    assert count == 3
    assert together == Tally(1050, 528)


def test_a_falling_acceptance_goes_on_from_its_last_position() -> None:
    together, count = tail([Tally(10000, 6000), Tally(6000, 2640), Tally(2640, 739)])
    assert (count, together.rate) == (1, pytest.approx(0.28, abs=0.001))


# Accept length


def test_an_endless_text_at_one_half_commits_one_and_three_quarters_at_two_steps() -> None:
    assert survival((0.5, 0.5)) == (1.0, 0.5, 0.25)
    assert accept_length((0.5, 0.5)) == 1.75


def verifies_slow(acceptance: tuple[float, ...], tokens: int) -> float:
    """Expected verifies for so many tokens, by the recursion over what the next one commits."""
    reach = [*survival(acceptance), 0.0]
    commits = [reach[n] - reach[n + 1] for n in range(len(acceptance) + 1)]
    needed = [0.0] * (tokens + 1)
    for left in range(1, tokens + 1):
        needed[left] = 1 + sum(p * needed[max(0, left - n - 1)] for n, p in enumerate(commits))
    return needed[tokens]


@pytest.mark.parametrize("tokens", [63, 127, 383])
@pytest.mark.parametrize("acceptance", [(0.65,), (0.65,) * 5, (0.6, 0.44, 0.28), (0.7,) * 10])
def test_the_cut_of_the_last_verify_is_that_of_the_exact_recursion(acceptance: tuple[float, ...], tokens: int) -> None:
    exact = tokens / verifies_slow(acceptance, tokens)
    assert accept_length(acceptance, tokens) == pytest.approx(exact, rel=2e-4)
    assert accept_length(acceptance, tokens) < accept_length(acceptance)


@pytest.mark.parametrize("depth", [1, 2, 5, 10])
def test_the_closed_forms_are_those_of_the_synthetic_pairs(depth: int) -> None:
    known = chain.Acceptance((0.7, 0.6, 0.5))
    acceptance = [known.at(k) for k in range(1, depth + 1)]
    length = chain.expected_accept_length(known, depth)
    assert accept_length(acceptance) == pytest.approx(length)
    assert sampling_error(acceptance, 400) == pytest.approx(chain.sampling_error(known, depth, 400) / length)


# Intervals over prompts


def drawn(rng: np.random.Generator, prompts: int, rate: float, *, apart: float = 0.08) -> dict[str, Tally]:
    """Prompts whose own rates lie apart, of 50 to 70 verifies."""
    reached = rng.integers(50, 70, prompts)
    own = np.clip(rate + apart * rng.normal(size=prompts), 0, 1)
    accepted = rng.binomial(reached, own)
    return {f"p{n}": Tally(float(r), float(a)) for n, (r, a) in enumerate(zip(reached, accepted, strict=True))}


def test_the_interval_is_as_wide_as_drawing_prompts_again_makes_it() -> None:
    rng = np.random.default_rng(1)
    prompts = drawn(rng, 60, 0.6)
    again = []
    for _ in range(2000):
        chosen = [prompts[f"p{n}"] for n in rng.integers(0, 60, 60)]
        again.append(sum(x.accepted for x in chosen) / sum(x.reached for x in chosen))
    seen = rate_interval(prompts, 0.1587)  # one standard error on either side
    assert (seen.upper - seen.lower) / 2 == pytest.approx(np.std(again), rel=0.06)


@pytest.mark.parametrize("prompts", [6, 24])
def test_bounds_miss_the_true_rate_as_seldom_as_they_promise(prompts: int) -> None:
    rng, nights = np.random.default_rng(2), 600
    seen = [rate_interval(drawn(rng, prompts, 0.6), 0.05) for _ in range(nights)]
    missed = [np.mean([s.lower > 0.6 for s in seen]), np.mean([s.upper < 0.6 for s in seen])]
    assert max(missed) <= 0.05 + 0.03


@pytest.mark.parametrize("prompts", [6, 24])
def test_bounds_of_a_change_miss_the_true_one_as_seldom_as_they_promise(prompts: int) -> None:
    rng, nights, missed = np.random.default_rng(3), 600, 0
    for _ in range(nights):
        own = np.clip(0.6 + 0.08 * rng.normal(size=prompts), 0, 1)
        then, now = (
            {f"p{n}": Tally(60.0, float(rng.binomial(60, p - lost))) for n, p in enumerate(own)} for lost in (0, 0.05)
        )
        seen = rate_change(then, now, 0.05)
        missed += not seen.lower <= -0.05 <= seen.upper
    assert missed / nights <= 0.10 + 0.04


def test_what_prompts_differ_in_by_themselves_drops_out_of_a_change() -> None:
    then = {f"p{n}": Tally(100, 40 + 10 * n) for n in range(5)}
    now = {p: Tally(100, x.accepted - 10) for p, x in then.items()}
    seen = rate_change(then, now, 0.005)
    assert (seen.centre, seen.upper - seen.lower) == (pytest.approx(-0.1), pytest.approx(0.0, abs=1e-9))


def test_a_single_prompt_has_a_rate_and_no_bounds() -> None:
    seen = rate_interval({"p": Tally(10, 6)}, 0.05)
    assert (seen.lower, seen.centre, seen.upper) == (-math.inf, 0.6, math.inf)

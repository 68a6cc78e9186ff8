"""What is said about accept length: floors, what is possible, the curve over depths, and prompts that were refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest

from fixtures import profiles
from fixtures.analysis import accept_length
from fixtures.analysis.counts import Counts
from fixtures.analysis.intervals import Outcome
from fixtures.analysis.measurement import Measurement, Refusal
from tests.kit.builders import measurement, sample

HOLDS, FALLS_SHORT, UNDECIDED = Outcome.HOLDS, Outcome.FALLS_SHORT, Outcome.UNDECIDED
TINY = profiles.load("cpu-tiny")
assert TINY.workload.oracle
ORACLE = profiles.read_oracle(TINY.workload.oracle)
SAMPLED = {"workload": {"temperature": 0.7}}


def with_counts(*verifies: int, depth: int = 2, prompt: str = "p0") -> Measurement:
    return measurement(depth, tuple(sample(prompt, repeat=k, verifies=v) for k, v in enumerate(verifies)))


def of_oracle(depth: int, *, passes: int = 1) -> Measurement:
    """The tiny pair's exact counts, 24 prompts."""
    samples = (
        sample(p, repeat=k, tokens=ORACLE.max_tokens, verifies=ORACLE.verifies(p, depth))
        for k in range(passes)
        for p in ORACLE.prompts
    )
    return measurement(depth, tuple(samples))


def refused(whole: Measurement, *prompts: str, passes: tuple[int, ...] = (0,)) -> Measurement:
    """The same where these prompts' completions of these passes were refused."""
    gone = [s for s in whole.samples if s.prompt in prompts and s.repeat in passes]
    refusals = tuple(Refusal(s.prompt, s.repeat, "HTTP 503") for s in gone)
    return replace(whole, samples=tuple(s for s in whole.samples if s not in gone), refusals=refusals)


# Floors


def test_counts_that_do_not_move_make_accept_length_exact() -> None:
    seen = accept_length.verdict(with_counts(50, 50, 50), 2.0)
    assert (seen.outcome, seen.lower, seen.estimate, seen.upper) == (HOLDS, 2.0, 2.0, 2.0)
    assert "exact for these prompts" in seen.message


def test_accept_length_below_its_floor_by_a_hair_falls_short() -> None:
    seen = accept_length.verdict(with_counts(51), 2.0)
    assert seen.outcome is FALLS_SHORT
    assert "1.961 (-2.0 %), 100 tokens in 51 verifies" in seen.message
    assert "Time plays no part" in seen.message


def test_counts_that_move_around_the_floor_are_undecided() -> None:
    seen = accept_length.verdict(with_counts(49, 51), 2.0)
    assert (seen.outcome, seen.lower, seen.upper) == (UNDECIDED, pytest.approx(100 / 51), pytest.approx(100 / 49))
    assert "Counts of 1 prompt moved between passes (p0)" in seen.message


def test_no_sample_is_undecided() -> None:
    assert accept_length.verdict(replace(with_counts(50), samples=()), 2.0).outcome is UNDECIDED


# Refused prompts


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 10])
def test_no_refusal_makes_a_good_draft_fall_short(depth: int) -> None:
    """Each of the 24 single refusals, and each pair; the whole lies within whatever their accept lengths are."""
    whole, floor = of_oracle(depth), TINY.floors.accept_length[depth]
    assert isinstance(floor, float)
    for prompts in [*((p,) for p in ORACLE.prompts), *combinations(ORACLE.prompts, 2)]:
        seen = accept_length.verdict(refused(whole, *prompts), floor)
        assert seen.outcome is not FALLS_SHORT, prompts
        assert seen.lower <= whole.accept_length <= seen.upper, prompts


@pytest.mark.parametrize("depth", [2, 5, 10])
def test_no_refusal_hides_a_worse_draft(depth: int) -> None:
    """A floor just above the whole, which the rest may well hold."""
    whole = of_oracle(depth)
    for prompts in combinations(ORACLE.prompts, 2):
        assert accept_length.verdict(refused(whole, *prompts), whole.accept_length + 0.001).outcome is not HOLDS


def test_a_refused_prompt_leaves_open_what_it_may_have_accepted_and_blames_no_draft() -> None:
    whole = measurement(2, tuple(sample(f"p{n}", verifies=50) for n in range(4)))
    seen = accept_length.verdict(refused(whole, "p3"), 1.9)
    # 300 tokens in 150 verifies; 100 more in 100 verifies at worst, in 100/3 at best.
    assert (seen.outcome, seen.estimate) == (UNDECIDED, 2.0)
    assert (seen.lower, seen.upper) == pytest.approx((400 / 250, 400 / (150 + 100 / 3)))
    assert "Every completion of 1 prompt was refused (p3; p3: HTTP 503)" in seen.message
    assert "anything from 1 to 3 tokens per verify, which makes it interval 1.600 to 2.182 for all 4" in seen.message
    assert "Nothing is said against the draft by this" in seen.message
    assert "likely side" not in seen.message


@pytest.mark.parametrize(("floor", "outcome"), [(1.59, HOLDS), (2.19, FALLS_SHORT)])
def test_what_no_refused_prompt_could_change_is_judged_all_the_same(floor: float, outcome: Outcome) -> None:
    whole = measurement(2, tuple(sample(f"p{n}", verifies=50) for n in range(4)))
    seen = accept_length.verdict(refused(whole, "p3"), floor)
    assert seen.outcome is outcome
    assert "That changes nothing about the verdict." in seen.message
    assert ("likely side" in seen.message) is (outcome is FALLS_SHORT)


@pytest.mark.parametrize("prompt", [*ORACLE.prompts])
def test_a_prompt_refused_in_some_passes_weighs_as_much_as_the_others(prompt: str) -> None:
    whole = of_oracle(5, passes=3)
    seen = accept_length.verdict(refused(whole, prompt, passes=(0, 2)), whole.accept_length)
    assert (seen.outcome, seen.lower, seen.upper) == (HOLDS, whole.accept_length, whole.accept_length)
    assert "each weighs the same in the figure" in seen.message


def test_passes_that_lack_different_prompts_are_no_passes_that_differ() -> None:
    """One prompt's count moves by a verify; the passes lack the easiest and the hardest prompt."""
    by_ease = sorted(ORACLE.prompts, key=lambda p: ORACLE.verifies(p, 5))
    whole = of_oracle(5, passes=2)
    moved = replace(
        whole, samples=(replace(whole.samples[0], verifies=whole.samples[0].verifies + 1), *whole.samples[1:])
    )
    one = refused(moved, by_ease[0], passes=(0,))
    both = refused(one, by_ease[-1], passes=(1,))
    expected, seen = (accept_length.verdict(m, 1.0) for m in (moved, both))
    assert (seen.lower, seen.upper) == pytest.approx((expected.lower, expected.upper), rel=1e-3)


def test_above_temperature_0_a_refused_prompt_widens_the_interval_over_repeats() -> None:
    samples = tuple(sample(f"p{n}", repeat=r, verifies=v) for n in range(8) for r, v in enumerate((49, 50, 51)))
    whole = measurement(2, samples, identity=SAMPLED)
    less = refused(whole, "p7", passes=(0, 1, 2))
    alone = accept_length.verdict(replace(less, refusals=()), 1.9)
    seen = accept_length.verdict(less, 1.9)
    assert (alone.outcome, seen.outcome) == (HOLDS, UNDECIDED)
    assert seen.lower == pytest.approx(8 / (7 / alone.lower + 1))
    assert seen.upper == pytest.approx(8 / (7 / alone.upper + 1 / 3))


def test_above_temperature_0_one_pass_bounds_nothing_whatever_was_refused() -> None:
    once = replace(of_oracle(2), identity=SAMPLED)
    seen = accept_length.verdict(refused(once, "kjv-01"), 1.5)
    assert (seen.outcome, seen.lower, seen.upper) == (UNDECIDED, -math.inf, math.inf)


# What is possible


@pytest.mark.parametrize(("verifies", "outcome"), [(34, HOLDS), (100, HOLDS), (33, FALLS_SHORT), (101, FALLS_SHORT)])
def test_two_steps_commit_between_one_and_three_tokens_per_verify(verifies: int, outcome: Outcome) -> None:
    seen = accept_length.bounds(with_counts(verifies))
    assert seen.outcome is outcome
    assert ("impossible" in seen.message) is (outcome is FALLS_SHORT)


# The curve over depths


def of_length(length: float, *prompts: str) -> dict[str, Counts]:
    """Counts of this accept length, of at most two digits after the point."""
    return {p: Counts((round(100 * length) + 1,), (100,)) for p in prompts or ("p0",)}


def test_a_deeper_draft_may_lose_its_tolerance_and_no_more() -> None:
    here = with_counts(50, depth=3)
    assert accept_length.depth_curve(here, {2: of_length(2.04)}, tolerance=0.02).outcome is HOLDS
    short = accept_length.depth_curve(here, {2: of_length(2.05)}, tolerance=0.02)
    assert short.outcome is FALLS_SHORT
    assert "falls from 2 steps to 3 steps: 2.050 to 2.000" in short.message


def test_beside_the_oracles_shallower_depth_a_fall_is_told_as_such() -> None:
    here = with_counts(50, depth=3)
    short = accept_length.depth_curve(here, {2: of_length(2.05)}, tolerance=0.02, of_oracle=True)
    assert short.outcome is FALLS_SHORT
    assert "The figure of 2 steps is the oracle's, since no shallower depth was measured" in short.message
    assert "KV cache" not in short.message


def test_small_falls_do_not_add_up_since_the_best_shallower_depth_counts() -> None:
    shallower = {1: of_length(2.07), 2: of_length(2.06), 3: of_length(2.02)}
    assert accept_length.depth_curve(with_counts(50, depth=5), shallower, tolerance=0.02).outcome is FALLS_SHORT


@pytest.mark.parametrize("shallower", [{}, {1: of_length(2.0, "another")}])
def test_one_depth_alone_compares_nothing_and_says_so(shallower: dict[int, dict[str, Counts]]) -> None:
    seen = accept_length.depth_curve(with_counts(50), shallower, tolerance=0.02)
    assert seen.outcome is UNDECIDED
    assert "compared with nothing" in seen.message


@pytest.mark.parametrize("easy", [100, 25])
def test_depths_are_compared_on_the_prompts_that_both_have(easy: int) -> None:
    """A prompt that only one depth has moves nothing, however hard or easy it is."""
    here = measurement(3, (sample("p0", verifies=50), sample("p1", verifies=easy)))
    seen = accept_length.depth_curve(here, {2: of_length(2.0)}, tolerance=0.02)
    assert (seen.outcome, seen.estimate) == (HOLDS, 2.0)
    assert "on 1 prompt. 1 prompt that only one of the two depths has left out." in seen.message
    fewer = accept_length.depth_curve(
        with_counts(50, depth=3), {2: of_length(2.0, "p0") | of_length(1.0, "p1")}, tolerance=0.02
    )
    assert (fewer.outcome, fewer.estimate) == (HOLDS, 2.0)

"""Intervals that keep their promise, and looks that stop when they may."""

from __future__ import annotations

import math
from itertools import product
from math import comb

import numpy as np
import pytest

from fixtures.analysis.guards import alarms
from fixtures.analysis.intervals import (
    Decision,
    Figures,
    Interval,
    Outcome,
    Paired,
    Rule,
    Session,
    Step,
    difference,
    estimate,
    least_count,
    look,
    paired,
    sign_interval,
    spare,
    t_interval,
    to_number,
)
from tests.kit.noise import H200_RECORDING, recorded

RULE = Rule(delta=0.005)


def steady(share_slower: float, *, prompts: int = 10, passes: int = 2) -> Figures:
    """Cycles of 10 ms times 1 + share, which scatter by 0.01 % around it."""
    scatter = (0.9999, 1.0001)
    return {
        f"p{n}": tuple(0.010 * (1 + share_slower) * scatter[(n + k) % 2] for k in range(passes)) for n in range(prompts)
    }


def spare_slow(count: int, alpha: float) -> int:
    """By adding up coin tosses."""
    q, tail = -1, 0.0
    while (tail := tail + comb(count, q + 1) / 2**count) <= alpha:
        q += 1
    return q


def looked(share_slower: float, passes: int, rule: Rule = RULE, session: Session | None = None) -> Decision:
    return look(paired(steady(share_slower, passes=passes), steady(0, passes=10)), passes, rule, session)


# The sign interval


@pytest.mark.parametrize(
    ("count", "alpha"), list(product((1, 2, 5, 8, 9, 20, 24, 100, 240), (0.0003, 0.002, 0.05, 0.25)))
)
def test_spare_values_are_those_that_adding_up_coin_tosses_gives(count: int, alpha: float) -> None:
    assert spare(count, alpha) == spare_slow(count, alpha)


def test_six_values_in_twenty_may_lie_beyond_a_bound_at_six_percent() -> None:
    assert spare(20, 0.06) == 6


def test_eight_values_are_the_fewest_with_a_bound_at_half_a_percent() -> None:
    assert least_count(0.005) == 8
    assert spare(8, 0.005) == 0
    assert spare(7, 0.005) == -1


def test_bounds_are_the_values_next_to_the_spare_ones() -> None:
    nine = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]
    assert sign_interval(nine, alpha=10 / 512, beta=1 / 512) == Interval(lower=2.0, centre=5.0, upper=9.0)


def test_too_few_values_have_a_median_and_no_bounds() -> None:
    assert sign_interval([1.0, 3.0], 0.01, 0.01) == Interval(-math.inf, 2.0, math.inf)
    assert math.isnan(sign_interval([], 0.01, 0.01).centre)


@pytest.mark.parametrize("count", [9, 20, 40, 100])
def test_bounds_miss_the_true_median_as_seldom_as_they_promise(count: int) -> None:
    """Drawn one by one from the H200's recorded scatter, outliers included, whose median is known."""
    pool = recorded(H200_RECORDING)
    pool = (pool - np.median(pool, axis=0)).ravel()
    truth = np.median(pool)
    ordered = np.sort(np.random.default_rng(1).choice(pool, (20_000, count)), axis=1)
    low, high = ordered[:, spare(count, 0.02)], ordered[:, -1 - spare(count, 0.05)]
    spread = 3 * math.sqrt(0.05 / 20_000)
    assert np.mean(low > truth) <= 0.02 + spread
    assert np.mean(high < truth) <= 0.05 + spread


def test_students_bounds_lie_where_the_table_says() -> None:
    """Mean 2, standard error 1, and t of two degrees of freedom is 2.92 at 5 % and 6.96 at 1 %."""
    values = [2 - math.sqrt(3), 2.0, 2 + math.sqrt(3)]
    seen = t_interval(values, alpha=0.05, beta=0.01)
    assert (seen.lower, seen.centre, seen.upper) == pytest.approx((2 - 2.920, 2, 2 + 6.965), abs=1e-3)


def test_a_single_prompt_has_no_students_bounds() -> None:
    assert t_interval([3.0], 0.05, 0.05) == Interval(-math.inf, 3.0, math.inf)
    assert math.isnan(t_interval([], 0.05, 0.05).centre)


def test_students_bounds_keep_their_promise_where_half_of_the_prompts_do_not_move() -> None:
    """As accept lengths do across versions: most prompts keep their counts, the others move by a few percent."""
    rng = np.random.default_rng(2)
    moved = np.where(rng.random((5_000, 24)) < 0.5, rng.uniform(-0.06, 0.06, (5_000, 24)), 0.0)
    missed = [t_interval(row.tolist(), 0.01, 0.01) for row in moved]
    spread = 3 * math.sqrt(0.01 / 5_000)
    assert np.mean([i.lower > 0 for i in missed]) <= 0.01 + spread
    assert np.mean([i.upper < 0 for i in missed]) <= 0.01 + spread


def test_errors_of_both_sides_add_like_a_right_triangle() -> None:
    seen = difference(Interval(7, 10, 13), Interval(4, 8, 12))
    assert seen == Interval(2 - 5, 2, 2 + 5)


def test_a_reference_without_bounds_leaves_the_difference_without() -> None:
    seen = difference(Interval(7, 10, 13), Interval(-math.inf, 8, math.inf))
    assert (seen.lower, seen.centre, seen.upper) == (-math.inf, 2, math.inf)


# Pairing


def test_each_prompt_is_held_against_its_own_median() -> None:
    tonight = {"short": (2.0, 2.0), "long": (30.0,)}
    reference = {"short": (1.0, 1.0, 4.0), "long": (10.0, 10.0, 10.0)}
    pairs = paired(tonight, reference)
    assert pairs.logs["short"] == pytest.approx((math.log(2), math.log(2)))
    assert pairs.logs["long"] == pytest.approx((math.log(3),))
    assert pairs.passes == 3


def test_prompts_without_a_partner_drop_out() -> None:
    assert paired({"a": (1.0,), "new": (1.0,)}, {"a": (1.0,), "gone": (1.0,)}).logs.keys() == {"a"}


def test_residuals_of_two_values_are_widened_by_the_square_root_of_two() -> None:
    pairs = paired({"a": (1.0,)}, {"a": (math.exp(-1), math.exp(1))})
    assert pairs.residuals == pytest.approx((-math.sqrt(2), math.sqrt(2)))


def test_a_reference_of_one_pass_scatters_between_its_prompts() -> None:
    pairs = paired({"a": (1.0,), "b": (1.0,)}, {"a": (math.exp(-1),), "b": (math.exp(1),)})
    assert pairs.residuals == pytest.approx((-1.0, 1.0))


def test_a_number_that_was_set_has_no_error_of_its_own() -> None:
    pairs = to_number({"a": (2.0, 4.0)}, 2.0)
    assert pairs.logs["a"] == pytest.approx((0.0, math.log(2)))
    assert (pairs.residuals, pairs.passes) == ((), 0)


# Sessions


def test_a_session_errs_by_tonights_boots_and_the_references() -> None:
    assert Session(boot=0.002, boots=1, reference_boots=1).error == pytest.approx(0.002 * math.sqrt(2))
    assert Session(boot=0.002, boots=4, reference_boots=4).error == pytest.approx(0.002 / math.sqrt(2))


def test_booting_again_does_not_help_against_what_moves_from_day_to_day() -> None:
    assert Session(day=0.003, nights=1, boots=3, reference_boots=3).error == pytest.approx(0.003 * math.sqrt(2))
    assert Session(day=0.003, nights=3, boots=3, reference_boots=3).error == pytest.approx(0.003 * math.sqrt(4 / 3))


# Looks


def test_a_steady_night_holds_after_two_passes() -> None:
    decision = looked(0.0, passes=2)
    assert (decision.outcome, decision.step) == (Outcome.HOLDS, Step.STOP)
    assert decision.seen.centre == pytest.approx(0.0, abs=1e-9)


def test_half_a_percent_slower_falls_short_after_two_passes() -> None:
    decision = looked(0.005, passes=2)
    assert (decision.outcome, decision.step) == (Outcome.FALLS_SHORT, Step.STOP)
    assert math.expm1(decision.seen.centre) == pytest.approx(0.005)


def test_a_change_that_is_certain_and_smaller_than_delta_holds() -> None:
    decision = looked(0.002, passes=2)
    assert decision.seen.lower > 0
    assert decision.outcome is Outcome.HOLDS


def test_faster_holds() -> None:
    assert looked(-0.05, passes=2).outcome is Outcome.HOLDS


def test_three_passes_are_no_look_and_ask_for_a_fourth() -> None:
    assert looked(0.0, passes=3).step is Step.ANOTHER_PASS


def wide(passes: int) -> Paired:
    """Half of the values 3 % faster, half 3 % slower: nothing can be said about 0.5 %."""
    return Paired({f"p{n}": tuple(0.03 * (-1) ** (n + k) for k in range(passes)) for n in range(10)})


def test_what_straddles_asks_for_more_until_the_last_look_and_is_undecided_then() -> None:
    assert look(wide(2), 2, RULE).step is Step.ANOTHER_PASS
    assert look(wide(4), 4, RULE).step is Step.ANOTHER_PASS
    last = look(wide(10), 10, RULE)
    assert (last.outcome, last.step) == (Outcome.UNDECIDED, Step.STOP)


def test_falling_short_asks_for_another_boot_until_the_rule_has_had_its_boots() -> None:
    rule = Rule(delta=0.005, boots=3)
    assert looked(0.02, 2, rule, Session(boots=1)).step is Step.ANOTHER_BOOT
    assert looked(0.02, 2, rule, Session(boots=2)).step is Step.ANOTHER_BOOT
    assert looked(0.02, 2, rule, Session(boots=3)).step is Step.STOP


def test_sessions_that_lie_far_apart_make_a_difference_undecided() -> None:
    apart = Session(boot=0.01)
    seen = looked(0.02, passes=10, session=apart)
    assert (seen.outcome, seen.step) == (Outcome.UNDECIDED, Step.STOP)
    assert seen.seen.lower == pytest.approx(math.log(1.02) - 3.09 * 0.01 * math.sqrt(2), abs=1e-3)


def test_a_floor_is_judged_without_a_delta() -> None:
    floor = Rule(delta=0.0, looks=(1,))
    above = to_number(steady(-0.001, prompts=20, passes=1), 0.010)
    below = to_number(steady(0.001, prompts=20, passes=1), 0.010)
    assert look(above, 1, floor).outcome is Outcome.HOLDS
    assert look(below, 1, floor).outcome is Outcome.FALLS_SHORT


def test_no_common_prompt_is_undecided() -> None:
    decision = look(paired(steady(0.0), {}), 10, RULE)
    assert (decision.outcome, decision.step) == (Outcome.UNDECIDED, Step.STOP)


def test_the_bounds_of_three_looks_are_wider_than_those_of_one() -> None:
    pairs = Paired({"p": tuple(float(x) for x in range(40))})
    assert estimate(pairs, Rule(0.005)).lower < estimate(pairs, Rule(0.005, looks=(10,))).lower


# Guards


def with_prompt(name: str, values: tuple[float, ...]) -> Paired:
    logs = {p: tuple(math.log(x / 0.010) for x in v) for p, v in steady(0.0, passes=len(values)).items()}
    return Paired({**logs, name: values})


def test_a_prompt_slower_in_each_of_four_passes_falls_short_though_the_median_holds() -> None:
    decision = look(with_prompt("p3", (0.02,) * 4), 4, RULE)
    assert decision.seen.centre < 0.001
    assert (decision.outcome, decision.step) == (Outcome.FALLS_SHORT, Step.STOP)
    assert decision.reason == "prompt p3 was slower than the rest in each of 4 passes, 2.0 % in the median"


def test_a_prompt_slower_in_each_of_two_passes_asks_for_more() -> None:
    decision = look(with_prompt("p3", (0.02,) * 2), 2, RULE)
    assert decision.step is Step.ANOTHER_PASS
    assert "p3" in decision.reason


def test_a_prompt_that_was_as_fast_as_ever_once_is_not_suspected() -> None:
    assert look(with_prompt("p3", (0.02, 0.02, 0.02, 0.0)), 4, RULE).outcome is Outcome.HOLDS


def improved_by(share: float, *, but_for: int, passes: int = 4, factor: float = 1.0) -> Paired:
    """Ten prompts, quicker by that share; the first ones took `factor` × as long as in the reference."""
    quick, left = steady(-share, passes=passes), steady(factor - 1, passes=passes)
    return paired({p: (left if n < but_for else quick)[p] for n, p in enumerate(quick)}, steady(0, passes=10))


def test_prompts_that_an_improvement_left_as_they_were_raise_no_alarm() -> None:
    for passes in RULE.looks:
        decision = look(improved_by(0.03, but_for=4, passes=passes), passes, RULE)
        assert (decision.outcome, decision.step, decision.reason) == (Outcome.HOLDS, Step.STOP, "")


def test_a_prompt_that_lost_what_others_gained_does() -> None:
    decision = look(improved_by(0.03, but_for=1, factor=1.01), 4, RULE)
    assert decision.outcome is Outcome.FALLS_SHORT
    assert decision.reason == "prompt p0 was slower than the rest in each of 4 passes, 4.1 % in the median"


def test_completions_as_quick_as_ever_are_no_outliers_of_a_quicker_night() -> None:
    """Two fifths of the completions of each prompt: no prompt is slow in every pass."""
    pairs = Paired(
        {f"p{n}": tuple(0.0 if (n + k) % 5 < 2 else -0.03 - 1e-4 * (k % 2) for k in range(5)) for n in range(10)}
    )
    asked = {"delta": 0.005, "alpha": 0.0003, "reference_passes": 10}
    assert not list(alarms(pairs.logs, **asked))
    slow = {p: [x + 0.01 * (x > -0.02) for x in logs] for p, logs in pairs.logs.items()}
    assert [a.certain for a in alarms(slow, **asked)] == [True]


def slow_ones(count: int, of: int) -> dict[str, tuple[float, ...]]:
    return {f"p{n}": (0.10 if n < count else 0.0001 * (n % 2),) for n in range(of)}


def outliers_among(count: int, of: int) -> list[bool]:
    """Whether what the guard says of single completions is certain; nothing where it is silent."""
    found = alarms(slow_ones(count, of), delta=0.005, alpha=0.0003, reference_passes=4)
    return [a.certain for a in found if "completions" in a.reason]


def test_eight_slow_completions_in_twenty_are_certain_and_one_is_usual() -> None:
    assert outliers_among(8, 20) == [True]
    assert outliers_among(1, 20) == []


def test_outliers_are_counted_against_their_usual_share() -> None:
    """P(at least 3 of 20) at 5 % is 0.075, of 4 is 0.016, of 7 is 0.00003."""
    by_count = {
        n: [
            a
            for a in alarms(slow_ones(n, 20), delta=0.005, alpha=0.0003, reference_passes=4)
            if "completions" in a.reason
        ]
        for n in (3, 4, 7)
    }
    assert not by_count[3]
    assert [a.certain for a in by_count[4]] == [False]
    assert [a.certain for a in by_count[7]] == [True]
    assert by_count[7][0].reason == (
        "7 of 20 completions took over 0.5 % longer per cycle than the median, where up to 5 % are usual"
    )

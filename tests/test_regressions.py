"""Tonight against an accepted reference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fixtures.analysis import regressions
from fixtures.analysis.checks import Check, Finding
from fixtures.analysis.facts import Comparison
from fixtures.analysis.intervals import Outcome, Rule, Step
from fixtures.analysis.measurement import Measurement, Refusal
from fixtures.analysis.reference import Accepted, Boot, Reference, from_json, of_sweep, to_json
from fixtures.analysis.regressions import Tonight
from tests.kit.builders import measurement, sample, slowed

HOLDS, FALLS_SHORT, UNDECIDED = Outcome.HOLDS, Outcome.FALLS_SHORT, Outcome.UNDECIDED
SAME = Comparison((), ())
UPGRADED = Comparison((), ("sglang: '0.5.23' → '0.5.24'",))
RULE = Rule(delta=0.01)
ACCEPTED = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")


def night(depth: int, *, factor: float = 1.0, passes: int = 4, prompts: int = 10, verifies: int = 50) -> Measurement:
    """Cycles of 10 ms (tokens of 10 ms at depth 0) that scatter by 0.01 %."""
    count = verifies if depth else 100
    each = (0.9999, 1.0001)
    samples = tuple(
        sample(f"p{n}", repeat=k, verifies=count, decode_s=count * 0.010 * factor * each[(n + k) % 2])
        for k in range(passes)
        for n in range(prompts)
    )
    return measurement(depth, samples, started_at="2026-11-02T03:00:00+00:00")


def reference(**changed: Any) -> Reference:
    """Of quiet nights at depths 0, 2 and 3: how far sessions lie apart is known, 0.01 % and less."""
    whole = of_sweep({d: night(d) for d in (0, 2, 3)}, ACCEPTED)
    depths = {d: replace(r, boots=tuple(_days(r.boots[0]))) for d, r in whole.depths.items()}
    return replace(whole, depths=depths, **changed)


def _days(boot: Boot) -> list[Boot]:
    """Ten boots on five days."""
    return [replace(boot, when=f"2026-11-0{1 + n // 2}T0{n % 2}:00:00+00:00") for n in range(10)]


def tonight(depth: int = 2, factor: float = 1.0, *, boots: int = 1, alternating: bool = False, **how: Any) -> Tonight:
    return Tonight(
        night(depth, factor=factor, **how), night(0, **how), how.get("passes", 4), boots=boots, alternating=alternating
    )


def cycle_time(night_: Tonight, comparison: Comparison = SAME, rule: Rule = RULE) -> regressions.Verdict:
    return regressions.cycle_time(night_, reference(), rule, comparison)


# Time


def test_a_night_as_quick_as_the_reference_holds() -> None:
    verdict = cycle_time(tonight())
    assert (verdict.outcome, verdict.estimate) == (HOLDS, pytest.approx(1.0, abs=1e-4))
    assert not regressions.improved(verdict)


def test_two_percent_slower_falls_short_and_says_what_when_and_how_sure() -> None:
    verdict = cycle_time(tonight(factor=1.02))
    assert verdict.outcome is FALLS_SHORT
    assert verdict.estimate == pytest.approx(1 / 1.02, abs=1e-4)
    for part in (
        "A cycle at 2 steps takes longer than in the reference: 10.000 ms then, 10.200 ms tonight, +2.0 %",
        "1.0 % is the least that tonight can claim to see",
        "from 40 samples of 10 prompts in 1 boot",
        "accepted by ada on 2026-11-02 (first night); it has 10 boots of 5 days, and sessions lie 0.00 % apart",
        "Nothing else that is known of host, software or flags differs from then: look at the host.",
    ):
        assert part in verdict.message


def test_what_differs_from_then_is_listed_when_something_fell() -> None:
    assert "What differs from then: sglang: '0.5.23' → '0.5.24'." in cycle_time(tonight(factor=1.02), UPGRADED).message
    assert "sglang" not in cycle_time(tonight(), UPGRADED).message


def test_quicker_than_the_reference_holds_and_is_an_improvement() -> None:
    verdict = cycle_time(tonight(factor=0.97))
    assert verdict.outcome is HOLDS
    assert regressions.improved(verdict)


def test_the_plain_server_has_a_verdict_of_its_own() -> None:
    verdict = cycle_time(tonight(0, factor=1.02))
    assert (verdict.depth, verdict.outcome) == (0, FALLS_SHORT)
    assert verdict.message.startswith("A token of the plain server takes longer than in the reference")


def test_alternating_nights_compare_costs_so_that_a_slower_host_is_no_regression() -> None:
    both_slower = Tonight(night(2, factor=1.3), night(0, factor=1.3), 4, alternating=True)
    assert cycle_time(both_slower).outcome is HOLDS
    dearer = Tonight(night(2, factor=1.3 * 1.03), night(0, factor=1.3), 4, alternating=True)
    verdict = cycle_time(dearer)
    assert verdict.outcome is FALLS_SHORT
    assert "1.000 plain tokens then, 1.030 tonight" in verdict.message


def test_a_reference_of_one_night_takes_for_granted_what_its_delta_needs() -> None:
    young = of_sweep({d: night(d) for d in (0, 2)}, ACCEPTED)
    small = regressions.cycle_time(tonight(factor=1.006), young, RULE, SAME)
    large = regressions.cycle_time(tonight(factor=1.02), young, RULE, SAME)
    assert small.outcome is UNDECIDED
    assert large.outcome is FALLS_SHORT
    assert "how far sessions lie apart isn't known yet" in large.message


def test_sessions_that_lie_far_apart_raise_the_least_change_that_can_be_claimed() -> None:
    """Days at 0 %, 1 %, 2 %, 3 %, 4 %: 1.6 % apart, five of which are 8 %; five days tell less than half of that."""
    whole = of_sweep({d: night(d) for d in (0, 2)}, ACCEPTED)
    boots = tuple(
        replace(b, cycles={p: [x * (1 + 0.01 * (n // 2)) for x in v] for p, v in b.cycles.items()})
        for n, b in enumerate(_days(whole.depths[2].boots[0]))
    )
    apart = replace(whole, depths={**whole.depths, 2: replace(whole.depths[2], boots=boots)})
    verdict = regressions.cycle_time(tonight(factor=1.02 * 1.03), apart, RULE, SAME)
    assert verdict.outcome is not FALLS_SHORT
    assert "16.5 % is the least that tonight can claim to see" in verdict.message


def test_before_it_falls_short_for_good_another_boot_is_asked_for() -> None:
    slow = tonight(factor=1.02)
    decision = regressions.look_at_reference(slow, reference(), Rule(delta=0.01, boots=2))
    assert decision.step is Step.ANOTHER_BOOT
    again = regressions.look_at_reference(replace(slow, boots=2), reference(), Rule(delta=0.01, boots=2))
    assert again.step is Step.STOP


def test_a_guard_that_spoke_is_in_the_message() -> None:
    base = night(2)
    samples = tuple(replace(s, decode_s=s.decode_s * (1.05 if s.prompt == "p3" else 1)) for s in base.samples)
    verdict = cycle_time(Tonight(replace(base, samples=samples), night(0), 4))
    assert verdict.outcome is FALLS_SHORT
    assert "Besides: prompt p3 was slower than the rest in each of 4 passes, 5.0 % in the median." in verdict.message


def test_what_a_guard_makes_fall_short_is_not_offered_as_an_improvement() -> None:
    base = night(2, factor=0.97)
    samples = tuple(replace(s, decode_s=s.decode_s * (1.10 if s.prompt == "p3" else 1)) for s in base.samples)
    verdict = cycle_time(Tonight(replace(base, samples=samples), night(0), 4))
    assert (verdict.outcome, verdict.lower > 1) == (FALLS_SHORT, True)
    assert "takes no longer than in the reference as a whole, and yet falls short by a part" in verdict.message
    assert "Besides: prompt p3 was slower than the rest" in verdict.message
    assert not regressions.improved(verdict)


def test_an_improvement_that_leaves_some_prompts_as_they_were_holds() -> None:
    base = night(2)
    samples = tuple(replace(s, decode_s=s.decode_s * (1 if int(s.prompt[1:]) < 4 else 0.97)) for s in base.samples)
    verdict = cycle_time(Tonight(replace(base, samples=samples), night(0), 4))
    assert verdict.outcome is HOLDS
    assert "slower than the rest" not in verdict.message


def test_if_all_became_slower_alike_speculation_is_not_what_changed() -> None:
    alike = [cycle_time(tonight(d, factor=1.05)) for d in (0, 2, 3)]
    assert regressions.moved_alike(alike) == (
        "The plain server and every depth became slower, all by about +5.0 %: the host or the whole engine moved, not "
        "speculation."
    )
    assert regressions.moved_alike(alike[1:]) is None
    assert regressions.moved_alike([cycle_time(tonight(0)), *alike[1:]]) is None


# Counts


def accept_length(verifies: int, comparison: Comparison = SAME, *, tolerance: float = 0.02) -> regressions.Verdict:
    return regressions.accept_length(night(2, verifies=verifies), reference(), comparison, tolerance=tolerance)


def test_equal_counts_hold_exactly() -> None:
    verdict = accept_length(50)
    assert (verdict.outcome, verdict.lower, verdict.upper) == (HOLDS, 1.0, 1.0)
    assert "exactly the reference's on every prompt" in verdict.message


def test_one_verify_more_falls_short_where_software_is_as_it_was() -> None:
    moved = night(2)
    samples = tuple(replace(s, verifies=51) if s.prompt == "p3" else s for s in moved.samples)
    verdict = regressions.accept_length(replace(moved, samples=samples), reference(), SAME, tolerance=0.02)
    assert verdict.outcome is FALLS_SHORT
    assert (
        "the reference's on 1 prompt: p3: 51 instead of 50. In all 501 for 1000 tokens instead of 500"
        in verdict.message
    )
    assert "look at the models' files" in verdict.message


def test_fewer_verifies_hold_and_are_an_improvement() -> None:
    verdict = accept_length(49)
    assert verdict.outcome is HOLDS
    assert regressions.improved(verdict)


def counting(by_prompt: dict[str, list[tuple[int, int]]], *, depth: int = 2, **facts: Any) -> Measurement:
    """Tokens and verifies of each pass, by prompt."""
    samples = tuple(
        sample(p, repeat=k, tokens=tokens, verifies=verifies, decode_s=verifies * 0.010)
        for p, passes in by_prompt.items()
        for k, (tokens, verifies) in enumerate(passes)
    )
    return measurement(depth, samples, started_at="2026-11-02T03:00:00+00:00", **facts)


def accepted(by_prompt: dict[str, list[tuple[int, int]]]) -> Reference:
    plain = counting({p: [(tokens, tokens - 1) for tokens, _ in passes] for p, passes in by_prompt.items()}, depth=0)
    return from_json(to_json(of_sweep({0: plain, 2: counting(by_prompt)}, ACCEPTED)))


def counted(
    then: dict[str, list[tuple[int, int]]], now: dict[str, list[tuple[int, int]]], comparison: Comparison = SAME
) -> regressions.Verdict:
    return regressions.accept_length(counting(now), accepted(then), comparison, tolerance=0.02)


STEADY: dict[str, list[tuple[int, int]]] = {"p1": [(101, 50)] * 2, "p2": [(101, 50)] * 2, "p3": [(101, 50)] * 2}


@pytest.mark.parametrize("gained", [30, 29], ids=["no better as a whole", "better as a whole"])
def test_counts_that_moved_both_ways_are_undecided_and_say_where_to_look(gained: int) -> None:
    verdict = counted(STEADY, {**STEADY, "p1": [(101, 70)] * 2, "p2": [(101, gained)] * 2})
    assert verdict.outcome is UNDECIDED
    assert not regressions.improved(verdict)
    for part in (
        f"on 2 prompts: p1: 70 instead of 50; p2: {gained} instead of 50.",
        "It fell on 1 prompt and rose on 1.",
        "something that decides what is drafted has changed though software, flags and draft are as they were",
        "Look at the models' files",
        "Nothing else that is known of host, software or flags differs from then",
    ):
        assert part in verdict.message


def test_counts_that_moved_both_ways_fall_short_if_they_are_worse_as_a_whole() -> None:
    driver = Comparison((), ("host.driver: '570' → '580'",))
    verdict = counted(STEADY, {**STEADY, "p1": [(101, 70)] * 2, "p2": [(101, 31)] * 2}, driver)
    assert verdict.outcome is FALLS_SHORT
    assert "What differs from then: host.driver: '570' → '580'." in verdict.message


def test_counts_that_moved_and_are_neither_better_nor_worse_are_undecided() -> None:
    assert counted(STEADY, {**STEADY, "p1": [(101, 49), (101, 51)]}).outcome is UNDECIDED


def test_a_prompt_that_says_fewer_tokens_is_compared_by_its_accept_length() -> None:
    short = counted(STEADY, {**STEADY, "p1": [(41, 40)] * 2})
    assert short.outcome is FALLS_SHORT
    assert short.estimate == pytest.approx((240 / 140) / 2)
    assert "p1: 41 tokens in 40 verifies instead of 101 tokens in 50 verifies." in short.message
    assert "In all 140 for 240 tokens instead of 150 for 300 tokens" in short.message


def test_other_tokens_in_as_many_verifies_have_moved() -> None:
    fewer, more = (counted(STEADY, {**STEADY, "p1": [(tokens, 50)] * 2}) for tokens in (91, 111))
    assert (fewer.outcome, more.outcome) == (FALLS_SHORT, HOLDS)
    assert regressions.improved(more)


def test_a_count_that_the_reference_has_shown_has_not_moved() -> None:
    unsteady = {**STEADY, "p1": [(101, 50)] * 9 + [(101, 52)]}
    for shown, lost in (((101, 52), 1.8), ((101, 50), -0.2)):
        verdict = counted(unsteady, {**STEADY, "p1": [shown] * 2})
        assert (verdict.outcome, verdict.estimate) == (HOLDS, pytest.approx(150.2 / (150.2 + lost)))
        assert not regressions.improved(verdict)
        assert "ones that the reference has shown" in verdict.message
        assert "on 1 prompt: p1." in verdict.message
    new = counted(unsteady, {**STEADY, "p1": [(101, 52), (101, 55)]})
    assert new.outcome is FALLS_SHORT
    assert "p1: 52, 55 instead of 50, 52." in new.message


def test_counts_that_were_rare_and_are_the_rule_now_do_not_hold() -> None:
    odd = {p: [(101, 100)] + [(101, 50)] * 9 for p in STEADY}
    verdict = counted(odd, {p: [(101, 100)] * 10 for p in STEADY})
    assert (verdict.outcome, verdict.estimate) == (UNDECIDED, pytest.approx(0.55))
    assert "come more often tonight, which moves it by -45.0 % as a whole" in verdict.message


def test_tokens_of_one_completion_and_verifies_of_another_have_not_been_shown() -> None:
    unsteady = {**STEADY, "p1": [(101, 50), (41, 20)]}
    assert counted(unsteady, {**STEADY, "p1": [(41, 20)] * 2}).outcome is HOLDS
    assert counted(unsteady, {**STEADY, "p1": [(41, 50)] * 2}).outcome is FALLS_SHORT


def test_without_a_common_prompt_nothing_is_known_of_counts() -> None:
    verdict = counted(STEADY, {"other": [(101, 50)] * 2})
    assert verdict.outcome is UNDECIDED
    assert "no prompt of the reference has a sample tonight" in verdict.message


SAMPLED = {"identity": {"workload": {"temperature": 0.8}}}
MOVING = {
    "p1": [(101, 40), (101, 50), (101, 50), (101, 50)],
    "p2": [(101, 60), (101, 45), (101, 60), (101, 60)],
    "p3": [(101, 50), (41, 15), (31, 12), (21, 9)],
}


@pytest.mark.parametrize("comparison", [SAME, UPGRADED], ids=["sampled", "upgraded"])
def test_a_night_whose_counts_move_is_exactly_as_good_as_the_reference_made_from_it(comparison: Comparison) -> None:
    tonight_ = counting(MOVING, **(SAMPLED if comparison is SAME else {}))
    verdict = regressions.accept_length(tonight_, accepted(MOVING), comparison, tolerance=0.02)
    assert (verdict.outcome, verdict.lower, verdict.estimate, verdict.upper) == (HOLDS, 1.0, 1.0, 1.0)
    assert "on 0 of which it moved" in verdict.message


def test_a_sampled_nights_accept_length_is_of_all_its_samples_together() -> None:
    """200 tokens in 100 verifies then, in 80 now, however they fall on the two samples: a quarter more."""
    then = {p: [(101, 20), (101, 80)] for p in ("p1", "p2")}
    now = {p: [(151, 50), (51, 30)] for p in ("p1", "p2")}
    verdict = regressions.accept_length(counting(now, **SAMPLED), accepted(then), SAME, tolerance=0.02)
    assert verdict.estimate == pytest.approx(1.25)


def test_of_an_older_reference_whose_counts_moved_the_accept_length_is_said_to_be_rough() -> None:
    whole = accepted(MOVING)
    older = replace(whole, depths={d: replace(r, by_sample={}) for d, r in whole.depths.items()})
    said = [
        regressions.accept_length(counting(MOVING, **SAMPLED), then, SAME, tolerance=0.02).message
        for then in (whole, older)
    ]
    assert ["is rough on 3 prompts: accept a night anew" in message for message in said] == [False, True]


@pytest.mark.parametrize(
    ("line", "differ"),
    [
        ("nccl: '2.27' → '2.28'", True),
        ("graph: None → 'captured, and a single request ran without'", True),
        ("sglang: '0.5.23' → '0.5.24'", True),
        ("reported.attention_backend: 'fa3' → 'triton'", True),
        ("draft: 'a' → 'b'", True),
        ("host.driver: '570' → '580'", False),
        ("accelerators: [] → [{}]", False),
    ],
)
def test_counts_need_not_be_equal_across_other_software(line: str, differ: bool) -> None:
    assert regressions.numerics_may_differ(Comparison((), (line,))) is differ


def spread_counts(*, lost: float) -> Measurement:
    """Half of the prompts lose twice as much accept length as the mean, half none."""
    base = night(2, prompts=20, verifies=1000)
    worse = round(1000 * (1 + 2 * lost))
    return replace(
        base,
        samples=tuple(replace(s, tokens=2001, verifies=worse if int(s.prompt[1:]) % 2 else 1000) for s in base.samples),
    )


def by_interval(lost: float) -> regressions.Verdict:
    then = of_sweep({0: night(0, prompts=20), 2: spread_counts(lost=0.0)}, ACCEPTED)
    return regressions.accept_length(spread_counts(lost=lost), then, UPGRADED, tolerance=0.02)


def test_across_versions_a_loss_within_the_tolerance_holds_and_a_certain_one_falls_short() -> None:
    assert by_interval(0.004).outcome is HOLDS
    lost = by_interval(0.05)
    assert lost.outcome is FALLS_SHORT
    assert "on 10 of which it moved" in lost.message
    assert "sglang: '0.5.23' → '0.5.24'" in lost.message


def test_across_versions_a_loss_on_one_prompt_of_twenty_is_undecided() -> None:
    base = spread_counts(lost=0.0)
    one = replace(base, samples=tuple(replace(s, verifies=2000) if s.prompt == "p3" else s for s in base.samples))
    then = of_sweep({0: night(0, prompts=20), 2: base}, ACCEPTED)
    assert regressions.accept_length(one, then, UPGRADED, tolerance=0.02).outcome is UNDECIDED


# The night as a whole


def coverage(measured: dict[int, Measurement], asked: set[int]) -> dict[int, Outcome]:
    return {v.depth: v.outcome for v in regressions.coverage(measured, reference(), asked=asked)}


def test_a_depth_that_was_asked_for_and_is_missing_falls_short() -> None:
    assert coverage({0: night(0), 2: night(2)}, {0, 2, 3}) == {0: HOLDS, 2: HOLDS, 3: FALLS_SHORT}


def test_a_deselected_depth_is_said_to_be_not_judged_which_is_not_missing() -> None:
    assert coverage({0: night(0), 2: night(2)}, {0, 2}) == {0: HOLDS, 2: HOLDS}
    assert regressions.not_judged({3}, reference()) == "Not judged, since this session leaves it out: 3 steps."
    assert regressions.not_judged({5}, reference()) is None


def test_a_depth_that_the_reference_lacks_is_undecided() -> None:
    assert coverage({5: night(5)}, {5}) == {5: UNDECIDED}


def test_missing_prompts_fall_short_with_the_reason_why() -> None:
    few = replace(night(2, prompts=8), refusals=(Refusal("p8", 0, "no token for 30 s"),))
    (verdict,) = regressions.coverage({2: few}, reference(), asked={2})
    assert verdict.outcome is FALLS_SHORT
    assert "2 prompts of the reference have no sample at 2 steps: p8, p9. p8: no token for 30 s" in verdict.message
    (renamed,) = regressions.coverage({2: night(2, prompts=8)}, reference(), asked={2})
    assert "were they renamed?" in renamed.message


NOISY = Finding(Check.NOISY_HOST, "The host was noisy.", "It matters.", "Try again.")
MIXED = Finding(Check.MIXED_SOURCES, "Sources were mixed.", "It matters.", "Look.")


def test_a_failed_check_turns_falling_short_into_an_explained_undecided() -> None:
    verdict = regressions.doubted(cycle_time(tonight(factor=1.02)), [NOISY])
    assert verdict.outcome is UNDECIDED
    assert verdict.message.startswith("A cycle at 2 steps takes longer than in the reference")
    assert "Undecided all the same, since a check did not pass. noisy-host: The host was noisy." in verdict.message


def test_a_noisy_host_casts_no_doubt_on_counts_and_mixed_sources_none_on_times() -> None:
    assert regressions.doubted(accept_length(51), [NOISY]).outcome is FALLS_SHORT
    assert regressions.doubted(accept_length(51), [MIXED]).outcome is UNDECIDED
    assert regressions.doubted(cycle_time(tonight(factor=1.02)), [MIXED]).outcome is FALLS_SHORT


def test_what_holds_is_left_alone_by_a_failed_check() -> None:
    held = cycle_time(tonight())
    assert regressions.doubted(held, [NOISY]) is held


def test_slowing_everything_down_is_seen_in_times_and_not_in_counts() -> None:
    slow = slowed(night(2), 2.0)
    assert cycle_time(Tonight(slow, night(0), 4)).outcome is FALLS_SHORT
    assert regressions.accept_length(slow, reference(), SAME, tolerance=0.02).outcome is HOLDS
    assert not math.isnan(cycle_time(Tonight(slow, night(0), 4)).estimate)

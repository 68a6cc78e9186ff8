"""What is said about throughput and cycles, texts and counts, and how."""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from fixtures.analysis import accept_length, looking, verdicts
from fixtures.analysis.intervals import Rule, Step
from fixtures.analysis.measurement import Measurement, Refusal, Sample
from fixtures.analysis.repeats import over_repeats
from fixtures.analysis.verdicts import Outcome, Verdict
from tests.kit.builders import RECORDINGS, from_noise_recording, measurement, sample, slowed

HOLDS, FALLS_SHORT, UNDECIDED = Outcome.HOLDS, Outcome.FALLS_SHORT, Outcome.UNDECIDED


def speculative(prompts: int = 24, *, factor: float = 1.0, scatter: float = 0.03) -> Measurement:
    """200 tok/s, accept length 2, cycles of 10 ms that scatter by 3 %."""
    return measurement(2, scattered(sample(decode_s=0.5 * factor), prompts, scatter))


def plain(prompts: int = 24, *, tokens_per_s: float = 100) -> Measurement:
    return measurement(0, scattered(sample(decode_s=100 / tokens_per_s, verifies=100), prompts, 0.0))


def scattered(like: Sample, prompts: int, scatter: float) -> tuple[Sample, ...]:
    each = (1 + scatter, 1 - scatter)
    return tuple(replace(like, prompt=f"p{n}", decode_s=like.decode_s * each[n % 2]) for n in range(prompts))


def saying(text: str, prompt: str = "p0", repeat: int = 0) -> Sample:
    return replace(sample(prompt, repeat=repeat), text=text, text_sha256=sha256(text.encode()).hexdigest())


def with_counts(*verifies: int, depth: int = 2, prompt: str = "p0") -> Measurement:
    return measurement(depth, tuple(sample(prompt, repeat=k, verifies=v) for k, v in enumerate(verifies)))


# Throughput


def test_twice_the_baseline_holds_a_floor_of_one_and_a_half() -> None:
    seen = verdicts.throughput(speculative(), plain(), 1.5)
    assert seen.outcome is HOLDS
    assert seen.estimate == pytest.approx(2.0, rel=0.001)
    assert seen.lower == pytest.approx(2 / 1.03)
    assert seen.upper == pytest.approx(2 / 0.97)
    assert seen.samples == 24


def test_every_verify_twice_as_slow_falls_short_of_the_throughputs_floor_and_not_of_the_accept_lengths() -> None:
    slow = speculative(factor=2.0)
    assert verdicts.throughput(slow, plain(), 1.5).outcome is FALLS_SHORT
    assert accept_length.verdict(slow, 1.9).outcome is HOLDS


def test_a_floor_inside_the_interval_is_undecided() -> None:
    seen = verdicts.throughput(speculative(), plain(), 2.0)
    assert seen.outcome is UNDECIDED
    assert "straddles the floor" in seen.message


def test_the_spread_of_accept_lengths_does_not_widen_the_interval() -> None:
    """Two kinds of prompts, accept length 1.25 and 5; every cycle 10 ms, 1.5 plain tokens."""
    samples = tuple(sample(f"p{n}", verifies=v, decode_s=v * 0.010) for n, v in enumerate((80, 20) * 12))
    seen = verdicts.throughput(measurement(2, samples), plain(tokens_per_s=150), 1.2)
    assert seen.estimate == pytest.approx(2 / 1.5)
    assert seen.upper == pytest.approx(seen.lower)


def test_one_completion_that_hung_for_a_minute_does_not_move_the_estimate() -> None:
    hung = speculative()
    hung = replace(hung, samples=(replace(hung.samples[0], decode_s=60.0), *hung.samples[1:]))
    assert verdicts.throughput(hung, plain(), 1.5).estimate == pytest.approx(2.0, rel=0.05)


def test_seven_samples_are_undecided_and_say_how_many_are_needed() -> None:
    seen = verdicts.throughput(speculative(7), plain(7), 1.5)
    assert seen.outcome is UNDECIDED
    assert (seen.lower, seen.upper) == (0.0, math.inf)
    assert "7 samples can't give an interval: at least 8 are needed" in seen.message


def test_prompts_without_a_baseline_are_left_out_and_said() -> None:
    seen = verdicts.throughput(speculative(24), plain(20), 1.5)
    assert seen.samples == 20
    assert "4 prompts without a partner left out" in seen.message


def test_nothing_in_common_is_undecided_never_held() -> None:
    strangers = measurement(0, (sample("other", decode_s=1.0, verifies=100),))
    seen = verdicts.throughput(speculative(), strangers, 1.5)
    assert seen.outcome is UNDECIDED
    assert "compared with nothing" in seen.message


def test_samples_pair_with_the_baseline_of_their_own_pass() -> None:
    """Both servers half as fast in the second pass: the ratio doesn't move."""
    both = [
        measurement(
            depth,
            tuple(
                replace(like, prompt=f"p{n}", repeat=k, decode_s=like.decode_s * (1 + k))
                for k in (0, 1)
                for n in range(10)
            ),
        )
        for depth, like in ((2, sample()), (0, sample(decode_s=1.0, verifies=100)))
    ]
    seen = verdicts.throughput(both[0], both[1], 1.5)
    assert (seen.lower, seen.estimate, seen.upper) == pytest.approx((2.0, 2.0, 2.0))


def test_a_pass_that_the_baseline_lacks_pairs_with_its_median() -> None:
    second = replace(
        speculative(scatter=0.0), samples=tuple(replace(s, repeat=7) for s in speculative(scatter=0.0).samples)
    )
    assert verdicts.throughput(second, plain(), 1.5).estimate == pytest.approx(2.0)


def test_the_message_tells_what_fell_by_how_much_and_from_what() -> None:
    seen = verdicts.throughput(speculative(factor=2.0), plain(), 1.5, accept_length_floor=1.9)
    for part in (
        "Throughput at 2 steps falls short of its floor of 1.500 × baseline",
        "100.0 tok/s plain, 100.0 tok/s speculative",
        "interval 0.971 to 1.031",
        "-33.3 % from the floor",
        "24 samples of 24 prompts",
        "paired with the plain server of this session (SGLang 0.5.23)",
        "2.000 tokens per verify",
        "a cycle of 20.00 ms costs as much as 2.00 plain tokens",
        "the floor asks for at most 1.33",
        "the cycle's time is the likely side",
    ):
        assert part in seen.message


def test_a_short_accept_length_is_named_as_the_likely_side() -> None:
    seen = verdicts.throughput(speculative(), plain(), 3.0, accept_length_floor=2.5)
    assert "the draft is the likely side" in seen.message


def test_recorded_passes_on_a_shared_cpu_hold_a_floor_a_quarter_below_the_seen_ratio() -> None:
    folder = RECORDINGS / "cpu-sglang-0.5.23"
    base, deep = (from_noise_recording(folder / f"noise_cpu_{n}.json", d) for n, d in (("base", 0), ("d2", 2)))
    for k in range(6):
        one, other = (replace(m, samples=tuple(s for s in m.samples if s.repeat == k)) for m in (deep, base))
        assert verdicts.throughput(one, other, 0.75 * 1.11).outcome is not FALLS_SHORT
        assert verdicts.throughput(slowed(one, 2.0), other, 0.75 * 1.11).outcome is FALLS_SHORT


def test_a_floor_that_one_pass_leaves_open_asks_for_another_and_a_clear_one_stops() -> None:
    floors = Rule(delta=0.0, looks=(1, 2, 4))
    straddled = looking.look_at_floor(speculative(), plain(), 2.0, passes=1, rule=floors)
    clear = looking.look_at_floor(speculative(factor=2.0), plain(), 1.5, passes=1, rule=floors)
    assert (straddled.outcome, straddled.step) == (UNDECIDED, Step.ANOTHER_PASS)
    assert (clear.outcome, clear.step) == (FALLS_SHORT, Step.STOP)


def test_a_prompt_refused_on_either_server_may_leave_the_floor_open_and_blames_nobody() -> None:
    """2 × the plain server's where 24 prompts answered; the 25th may have accepted nothing, or everything."""
    scatter = speculative(scatter=0.0)
    refused = replace(scatter, refusals=(Refusal("p24", 0, "HTTP 503"),))
    least, most = 25 / (24 / 2 + 1), 25 / (24 / 2 + 1 / 3)
    seen = verdicts.throughput(refused, plain(), 1.99)
    assert verdicts.throughput(scatter, plain(), 1.99).outcome is HOLDS
    assert (seen.outcome, seen.lower, seen.upper) == (UNDECIDED, pytest.approx(least), pytest.approx(most))
    assert "1 completion refused (the first: p24, HTTP 503), so accept length over all prompts" in seen.message
    assert "It is what leaves the floor open: find out what refused them, and measure again." in seen.message
    assert "side" not in seen.message
    assert verdicts.throughput(refused, plain(), 1.9).outcome is HOLDS
    assert verdicts.throughput(refused, plain(), 2.1, accept_length_floor=2.5).outcome is FALLS_SHORT


def test_what_a_prompt_that_the_plain_server_refused_accepted_is_known() -> None:
    """23 prompts of accept length 2, and one of 1 that the plain server has not."""
    here = speculative(scatter=0.0)
    here = replace(here, samples=(*here.samples[:-1], replace(here.samples[-1], verifies=100, decode_s=1.0)))
    partners = replace(plain(23), refusals=(Refusal("p23", 0, "HTTP 503"),))
    seen = verdicts.throughput(here, partners, 1.95)
    assert (seen.outcome, seen.lower, seen.upper) == (UNDECIDED, pytest.approx(24 / 12.5), 2.0)


def test_which_side_it_is_is_left_open_where_refusals_leave_accept_length_open() -> None:
    slow = replace(speculative(factor=2.0), refusals=(Refusal("p24", 0, "HTTP 503"),))
    said = [verdicts.throughput(slow, plain(), 1.5, accept_length_floor=least).message for least in (1.5, 1.99, 2.5)]
    assert "the cycle's time is the likely side" in said[0]
    assert "Refused completions leave open whether accept length holds its own floor" in said[1]
    assert "the draft is the likely side" in said[2]


@pytest.mark.parametrize("passes", [1, 4])
def test_looks_without_a_common_prompt_say_so_and_ask_on_until_the_last(passes: int) -> None:
    """Two prompts, of which either server refused another one."""
    both = (measurement(2, (sample("a"),)), measurement(0, (sample("b"),)))
    rule = Rule(delta=0.0, looks=(1, 4))
    for seen in (
        looking.look_at_floor(*both, 1.0, passes=passes, rule=rule),
        looking.look_at_ceiling(*both, 1.0, passes=passes, rule=rule),
    ):
        assert (seen.outcome, seen.reason) == (UNDECIDED, "no prompt has a sample on both servers")
        assert seen.step is (Step.STOP if passes == 4 else Step.ANOTHER_PASS)
    cost = verdicts.cost(*both)
    assert (cost.lower, cost.upper) == (0.0, math.inf)


# Throughput above temperature 0

SAMPLED = {"workload": {"temperature": 0.7}}


def drawn(rng: np.random.Generator, means: np.ndarray[Any, Any], *, passes: int = 2) -> tuple[Measurement, Measurement]:
    """127 decode tokens a sample; verifies scatter by 8 % over repeats, cycles of one plain token's 10 ms by 0.03 %."""
    verifies = rng.normal(means, 0.08 * means, (passes, len(means))).round().astype(int)
    cycle_s = 0.01 * rng.normal(1.0, 0.0003, (2, passes, len(means)))
    here, there = (
        tuple(
            sample(f"p{n}", repeat=k, tokens=128, verifies=v, decode_s=v * float(cycle_s[side, k, n]))
            for k in range(passes)
            for n in range(len(means))
            for v in (int(verifies[k, n]) if side else 127,)
        )
        for side in (1, 0)
    )
    return measurement(2, here, identity=SAMPLED), measurement(0, there, identity=SAMPLED)


@pytest.mark.parametrize("level", [0.005, 0.05])
def test_a_floor_at_the_truth_falls_short_as_seldom_as_promised(level: float) -> None:
    """Ten prompts of two passes; neither falling short nor holding, which would hide a fall, errs more often."""
    rng, trials = np.random.default_rng(7), 300
    means = rng.uniform(45, 80, size=10)
    true, rule = 127 / float(means.mean()), Rule(delta=0.0, looks=(1,), alpha=level, beta=level)
    seen = [verdicts.throughput(*drawn(rng, means), true, rule=rule).outcome for _ in range(trials)]
    most = level * trials + 3 * math.sqrt(level * (1 - level) * trials)
    assert seen.count(FALLS_SHORT) <= most
    assert seen.count(HOLDS) <= most
    assert seen.count(UNDECIDED) < trials or level < 0.05


def test_a_look_decides_by_the_same_interval_as_the_verdict() -> None:
    here, there = drawn(np.random.default_rng(1), np.linspace(45, 80, 10), passes=4)
    floors = Rule(delta=0.0, looks=(2, 4))
    seen = verdicts.ratio(here, there, floors)
    outcomes = {
        floor: looking.look_at_floor(here, there, floor, passes=4, rule=floors)
        for floor in (seen.lower * 0.999, seen.lower * 1.001, seen.upper * 0.999, seen.upper * 1.001)
    }
    assert [d.outcome for d in outcomes.values()] == [HOLDS, UNDECIDED, UNDECIDED, FALLS_SHORT]
    assert {d.step for d in outcomes.values()} == {Step.STOP}
    early = looking.look_at_floor(here, there, seen.centre, passes=2, rule=floors)
    assert (early.outcome, early.step) == (UNDECIDED, Step.ANOTHER_PASS)


def test_cycles_and_repeats_err_independently() -> None:
    here, there = drawn(np.random.default_rng(1), np.linspace(45, 80, 10))
    seen, greedy = verdicts.ratio(here, there), verdicts.ratio(replace(here, identity={}), there)
    length = over_repeats(here, alpha=0.005, beta=0.005)
    assert seen.centre == pytest.approx(greedy.centre)
    for end in ("lower", "upper"):
        apart = [math.log(getattr(i, end) / i.centre) for i in (seen, greedy, length)]
        assert abs(apart[0]) == pytest.approx(math.hypot(apart[1], apart[2]))


def test_one_pass_above_temperature_0_is_undecided_and_asks_for_another() -> None:
    once = drawn(np.random.default_rng(1), np.linspace(45, 80, 10), passes=1)
    seen = verdicts.throughput(*once, 0.5)
    assert (seen.outcome, seen.lower, seen.upper) == (UNDECIDED, 0.0, math.inf)
    assert "No prompt has a second sample" in seen.message
    assert "ask for two passes or more" in seen.message
    look = looking.look_at_floor(*once, 0.5, passes=1, rule=Rule(delta=0.0, looks=(1, 2)))
    assert look.step is Step.ANOTHER_PASS


@pytest.mark.parametrize(("ceiling", "outcome"), [(1.1, HOLDS), (1.0, UNDECIDED), (0.9, FALLS_SHORT)])
def test_a_cycle_of_one_plain_token_is_held_against_its_ceiling(ceiling: float, outcome: Outcome) -> None:
    seen = verdicts.cycle_cost(speculative(), plain(), ceiling)
    assert seen.outcome is outcome
    assert seen.estimate == pytest.approx(1.0, rel=0.001)
    assert seen.lower == pytest.approx(0.97)


def test_a_ceiling_without_a_common_prompt_is_undecided() -> None:
    assert verdicts.cycle_cost(speculative(), measurement(0, (sample("other"),)), 1.0).outcome is UNDECIDED


# The best depth


def at(depth: int, tokens_per_s: float) -> Measurement:
    return measurement(depth, (sample(tokens=101, decode_s=100 / tokens_per_s, verifies=50 if depth else 100),))


def test_the_fastest_depth_is_the_best() -> None:
    assert verdicts.best_depth({0: at(0, 100), 2: at(2, 120), 5: at(5, 110)}) == 2


def test_within_one_percent_the_smaller_depth_wins() -> None:
    assert verdicts.best_depth({0: at(0, 100), 1: at(1, 119.5), 2: at(2, 120)}) == 1
    assert verdicts.best_depth({0: at(0, 100), 1: at(1, 118), 2: at(2, 120)}) == 2


def test_no_speculation_may_be_the_best() -> None:
    assert verdicts.best_depth({0: at(0, 100), 1: at(1, 100.5)}) == 0


def test_depths_are_compared_on_common_prompts_alone() -> None:
    easy = measurement(2, (sample("easy", decode_s=0.1), sample("p0", decode_s=1.0)))
    assert verdicts.best_depth({0: at(0, 100), 1: at(1, 150), 2: easy}) == 1


def test_without_a_common_prompt_there_is_no_best_depth() -> None:
    with pytest.raises(ValueError, match=r"no prompt is common to the depths \[1, 2\]"):
        verdicts.best_depth({1: at(1, 100), 2: measurement(2, (sample("other"),))})


# Texts


def test_equal_texts_hold() -> None:
    both = [measurement(d, (saying("In the beginning"),)) for d in (2, 0)]
    assert verdicts.identical_text(both[0], both[1], 0.0).outcome is HOLDS


def test_a_different_text_is_shown_where_it_begins_to_differ() -> None:
    base = measurement(0, (saying("In the beginning God created"),))
    here = measurement(2, (saying("In the beginning God rested"),))
    seen = verdicts.identical_text(here, base, 0.0)
    assert seen.outcome is FALLS_SHORT
    assert "p0 from character 21: 'n the beginning God created' became 'n the beginning God rested'" in seen.message


def test_a_text_that_ends_early_differs_at_its_end() -> None:
    base, here = measurement(0, (saying("abcdef"),)), measurement(2, (saying("abc"),))
    assert "p0 from character 3: 'abcdef' became 'abc'" in verdicts.identical_text(here, base, 0.0).message


def test_control_characters_reach_no_terminal() -> None:
    base, here = measurement(0, (saying("a\x1b[31mb"),)), measurement(2, (saying("a\x1b[0m\u202ec\n"),))
    message = verdicts.identical_text(here, base, 0.0).message
    assert message.isprintable()
    assert r"\x1b[0m\u202ec\n" in message


def test_a_difference_in_a_later_pass_counts() -> None:
    base = measurement(0, (saying("same"),))
    here = measurement(2, (saying("same"), saying("some", repeat=1)))
    assert verdicts.identical_text(here, base, 0.0).outcome is FALLS_SHORT


@pytest.mark.parametrize(("allowed", "outcome"), [(0.24, FALLS_SHORT), (0.25, HOLDS)])
def test_a_stated_share_of_prompts_may_differ(allowed: float, outcome: Outcome) -> None:
    base = measurement(0, tuple(saying("same", f"p{n}") for n in range(4)))
    here = measurement(2, (saying("other", "p0"), *(saying("same", f"p{n}") for n in range(1, 4))))
    assert verdicts.identical_text(here, base, allowed).outcome is outcome


def test_texts_of_different_prompts_are_compared_with_nothing() -> None:
    seen = verdicts.identical_text(measurement(2, (saying("a", "x"),)), measurement(0, (saying("a", "y"),)), 0.0)
    assert seen.outcome is UNDECIDED


# Oracles


def test_equal_counts_hold() -> None:
    assert verdicts.oracle_counts(with_counts(50, 50), {"p0": 50}).outcome is HOLDS


def test_a_count_off_by_one_falls_short_and_is_named() -> None:
    seen = verdicts.oracle_counts(with_counts(50, 51), {"p0": 50})
    assert seen.outcome is FALLS_SHORT
    assert "p0: 50, 51 instead of 50; +0.5 verifies per pass" in seen.message


def test_prompts_that_the_oracle_lacks_are_said_to_be_not_compared() -> None:
    both = measurement(2, (sample("known"), sample("new")))
    seen = verdicts.oracle_counts(both, {"known": 50})
    assert seen.outcome is HOLDS
    assert "1 prompt not in the oracle" in seen.message
    assert verdicts.oracle_counts(both, {}).outcome is UNDECIDED


# What fails a test


def verdict(outcome: Outcome) -> Verdict:
    return Verdict("throughput", 2, outcome, 1.0, 0.9, 1.1, 1.0, 24, "")


@pytest.mark.parametrize(
    ("outcome", "undecided", "nights", "expected"),
    [
        (HOLDS, "fail", 9, False),
        (FALLS_SHORT, "warn", 1, True),
        (UNDECIDED, "warn", 1, False),
        (UNDECIDED, "warn", 2, False),
        (UNDECIDED, "warn", 3, True),
        (UNDECIDED, "fail", 1, True),
    ],
)
def test_undecided_fails_on_the_third_night_or_at_once_if_asked(
    outcome: Outcome, undecided: str, nights: int, expected: bool
) -> None:
    assert verdicts.fails(verdict(outcome), undecided=undecided, nights=nights) is expected  # type: ignore[arg-type]

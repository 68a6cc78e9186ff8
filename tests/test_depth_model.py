"""Which depth to run: measured, predicted, and left out to see whether the prediction holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from fixtures.analysis import depth_model
from fixtures.analysis.accept_curve import FromHistograms, FromLengths, concave_bounds, from_histograms, from_lengths
from fixtures.analysis.depth_model import Choice, DepthModel, Prediction, choose, model, of_sweep
from fixtures.analysis.intervals import Interval
from fixtures.analysis.lines import Estimate
from fixtures.analysis.measurement import Measurement, from_json
from fixtures.analysis.positions import added
from fixtures.analysis.sides import Part
from fixtures.analysis.verdicts import ratio
from fixtures.pairs import chain
from tests.kit.builders import RECORDINGS, from_noise_recording, measurement, sample
from tests.kit.nights import counts, night

ROOT = Path(__file__).resolve().parent.parent
DEPTHS = (1, 2, 3, 5, 10)
H200_SWEEPS = sorted(p.parent for p in (ROOT / "perf" / "recordings" / "h200").rglob("depth-3.json"))


def half_width(seen: Interval) -> float:
    """As a share of the centre."""
    return (seen.upper - seen.lower) / 2 / seen.centre


def holds(seen: Interval, value: float) -> bool:
    return seen.lower <= value <= seen.upper


# The published table of one deployment


def published(nccl: str = "tuned") -> dict[int, Mapping[str, Any]]:
    raw = json.loads((RECORDINGS / "kimi-k2.5-int4" / "tuning_log.json").read_text(encoding="utf-8"))
    rows = {r["steps"]: r for r in raw["sweep"] if r["nccl"] == nccl and r["tok_s"] and "ms_per_cycle" in r}
    return {**rows, 0: {"tok_s": raw["baseline_tok_s"]["tuned"]}}


def accepted_drafts() -> dict[int, float]:
    """The log's own accept lengths: drafts alone at 1 and 5 steps, and at 2 a range with the bonus token in it."""
    rows = published()
    low, _ = rows[2]["accept_length_quoted"]
    return {1: rows[1]["accepted_drafts_per_cycle"] + 1, 2: low, 5: rows[5]["accepted_drafts_per_cycle"] + 1}


def deployment() -> DepthModel:
    rows = published()
    cycles = {d: Estimate(rows[d]["ms_per_cycle"]["total"]) for d in (1, 2, 5)}
    lengths = {d: rows[d]["tok_s"] * cycles[d].value / 1000 for d in (1, 2, 5)}
    return model(Estimate(1000 / rows[0]["tok_s"]), cycles, from_lengths(lengths))


def test_its_accept_lengths_and_cycles_give_its_throughputs_back_within_one_and_a_half_percent() -> None:
    rows = published()
    for depth, length in accepted_drafts().items():
        rate = 1000 * length / rows[depth]["ms_per_cycle"]["total"]
        assert rate == pytest.approx(rows[depth]["tok_s"], rel=0.015)


def test_its_two_conventions_differ_by_the_bonus_token() -> None:
    """0.62 and 0.95 are drafts alone; tok/s × seconds per cycle counts the bonus token, as 1.85 to 2.12 does."""
    rows = published()
    committed = {d: rows[d]["tok_s"] * rows[d]["ms_per_cycle"]["total"] / 1000 for d in (1, 2, 5)}
    assert committed[1] - rows[1]["accepted_drafts_per_cycle"] == pytest.approx(1, abs=0.02)
    assert committed[5] - rows[5]["accepted_drafts_per_cycle"] == pytest.approx(1, abs=0.02)
    low, high = rows[2]["accept_length_quoted"]
    assert low <= committed[2] <= high


def test_two_steps_are_named_and_three_cannot_be_told_from_them() -> None:
    choice = choose(deployment().predictions())
    assert (choice.best.depth, choice.best.measured) == (2, True)
    assert choice.best.ratio.centre == pytest.approx(1.059, abs=0.001)
    assert [p.depth for p in choice.rivals] == [3]
    assert str(choice) == (
        "Best: 2 steps, 1.059 × the plain server. By what is known these may be better by more than 1 %: "
        "3 steps 1.052 × (0.996 to 1.101), predicted."
    )


def test_three_steps_are_predicted_to_make_93_tokens_a_second() -> None:
    seen = deployment().at(3)
    assert (seen.measured, seen.accept_length.centre) == (False, pytest.approx(1.940, abs=0.002))
    assert seen.cycle.centre == pytest.approx(20.8, abs=0.1)
    assert 88.8 * seen.ratio.centre == pytest.approx(93.4, abs=0.2)


def test_ratios_of_its_measured_depths_are_its_own() -> None:
    seen = {d: round(deployment().at(d).ratio.centre, 3) for d in (0, 1, 2, 5)}
    assert seen == {0: 1.0, 1: 0.958, 2: 1.059, 5: 0.976}


def test_its_phases_tell_verifys_time_per_step_from_the_rest() -> None:
    rows = published()
    phases = {d: {Part.VERIFY: Estimate(rows[d]["ms_per_cycle"]["verify"])} for d in (1, 2, 5)}
    whole = deployment()
    parted = model(whole.plain, whole.cycles, whole.curve, phases)
    verify = parted.phases["verify"]
    assert verify.slope.value == pytest.approx(1.05, abs=0.05)
    assert verify.fixed.value == pytest.approx(16.5, abs=0.2)
    assert parted.line
    assert verify.slope.value > parted.line.slope.value


def test_ten_steps_are_predicted_near_what_the_log_has_without_tuning() -> None:
    """Published are 60.0 tok/s untuned; tuning took 71.3 to 86.7 at 5 steps, which makes 73."""
    assert holds(deployment().at(10).ratio, 60.0 * 86.7 / 71.3 / 88.8)


# Accept length between and beyond


def exact_counts(*, without: int | None = None) -> tuple[dict[int, Sequence[float]], dict[int, float]]:
    """The tiny pair's histograms and accept lengths by depth, from its oracle."""
    raw = json.loads((ROOT / "perf" / "oracles" / "tiny-eagle3.json").read_text(encoding="utf-8"))["prompts"]
    all_ = {d: added([p["accepted_drafts_histogram"][str(d)] for p in raw.values()]) for d in DEPTHS if d != without}
    return dict(all_), {d: 127 * len(raw) / sum(h) for d, h in all_.items()}


@pytest.mark.parametrize("left", DEPTHS)
def test_the_tiny_pairs_accept_length_lies_in_the_interval_of_a_depth_left_out(left: int) -> None:
    _, true = exact_counts()
    histograms, lengths = exact_counts(without=left)
    seen = from_histograms(histograms, lengths, tokens=127).at(left, 0.025)
    assert holds(seen, true[left])
    assert half_width(seen) < 0.055
    coarse = from_lengths(lengths, verifies=sum(histograms[min(histograms)])).at(left, 0.025)
    assert holds(coarse, true[left])
    assert half_width(coarse) > half_width(seen)


def synthetic(acceptance: str, seed: int) -> tuple[dict[int, Sequence[float]], dict[int, float]]:
    """Exact counts of a synthetic pair: four prompts of 384 tokens."""
    line, known = chain.Chain(8000, seed), chain.Acceptance.parse(acceptance)
    asked = chain.prompts(line, count=4, words=8)
    counts_ = {
        d: [chain.accepted_drafts(line, known, p[-1], tokens=384, depth=d) for p in asked.values()] for d in DEPTHS
    }
    histograms = {d: added([[a.count(n) for n in range(d + 1)] for a in c]) for d, c in counts_.items()}
    return dict(histograms), {d: 383 * len(asked) / sum(h) for d, h in histograms.items()}


@pytest.mark.parametrize("acceptance", ["0.65", "0.6,0.44,0.28", "0.8", "0.5,0.6,0.7"])
def test_a_depth_left_out_lies_in_its_interval_as_often_as_promised(acceptance: str) -> None:
    """95 % are promised, with acceptance by position alike, falling, and rising."""
    hit, wide, asked = 0, 0.0, 0
    for seed in range(12):
        histograms, lengths = synthetic(acceptance, seed)
        for left in DEPTHS:
            known = {d: h for d, h in histograms.items() if d != left}
            seen = from_histograms(known, {d: lengths[d] for d in known}, tokens=383).at(left, 0.025)
            hit += holds(seen, lengths[left])
            wide += half_width(seen)
            asked += 1
    assert hit / asked >= 0.95
    assert wide / asked < 0.05


def test_without_histograms_acceptance_is_the_same_between_two_measured_depths() -> None:
    curve = from_lengths({1: 1.5, 3: 1.5 + 0.5 * (0.5 + 0.25)})
    assert [curve.acceptance(k) for k in (1, 2, 3, 4)] == pytest.approx([0.5] * 4)
    assert curve.at(2, 0.025).centre == pytest.approx(1.75)


def test_an_accept_length_that_does_not_grow_means_that_nothing_more_is_accepted() -> None:
    curve = from_lengths({1: 1.6, 2: 1.6})
    assert [curve.acceptance(k) for k in (1, 2, 3)] == pytest.approx([0.6, 0.0, 0.0])


def concave_bounds_slow(depth: int, measured: Mapping[int, float]) -> tuple[float, float]:
    """By linear programming over all curves whose gains are between 0 and 1 and never grow."""
    deepest = max(depth, *measured)
    gains = np.tril(np.ones((deepest, deepest)))
    never_grow = np.eye(deepest, k=1)[:-1] - np.eye(deepest)[:-1]
    found = [
        linprog(
            sign * gains[depth - 1],
            A_ub=never_grow,
            b_ub=np.zeros(deepest - 1),
            A_eq=gains[[d - 1 for d in measured]],
            b_eq=[a - 1 for a in measured.values()],
            bounds=(0, 1),
        ).fun
        for sign in (1, -1)
    ]
    return 1 + found[0], 1 - found[1]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6, 7, 8, 9, 12, 16])
@pytest.mark.parametrize("measured", [{5: 2.6}, {2: 2.1, 5: 2.6}, {2: 2.1, 5: 2.6, 10: 2.9}])
def test_concave_bounds_are_those_that_linear_programming_finds(depth: int, measured: Mapping[int, float]) -> None:
    if depth not in measured:
        assert concave_bounds(depth, measured) == pytest.approx(concave_bounds_slow(depth, measured), abs=1e-6)


def test_beyond_the_known_positions_the_interval_grows_with_every_step() -> None:
    curve = from_histograms(*exact_counts(without=10), tokens=127)
    widths = [half_width(curve.at(d, 0.025)) for d in (6, 8, 10, 16)]
    assert widths == sorted(widths)


def test_both_curves_say_where_acceptance_comes_from() -> None:
    assert isinstance(depth_model.curve(night(seed=1).measured_speculative), FromHistograms)
    plain = {
        d: replace(m, samples=tuple(replace(s, accepted_histogram=None) for s in m.samples))
        for d, m in night(seed=1).measured_speculative.items()
    }
    assert isinstance(depth_model.curve(plain), FromLengths)


# Whole sweeps


def left_out(measured: Mapping[int, Measurement], depth: int) -> Prediction:
    return of_sweep({d: m for d, m in measured.items() if d != depth}).at(depth)


def seen_ratio(measured: Mapping[int, Measurement], depth: int) -> Interval:
    return ratio(measured[depth], measured[0])


@pytest.mark.parametrize("left", [1, 2, 3, 5])
def test_on_a_quiet_gpu_a_depth_left_out_is_predicted_to_three_percent(left: int) -> None:
    """Noise as recorded on the H200, exact counts of the tiny pair, cycles on a line."""
    measured = night(seed=5).measured
    predicted = left_out(measured, left)
    assert holds(predicted.ratio, seen_ratio(measured, left).centre)
    assert half_width(predicted.cycle) < 0.03
    assert half_width(predicted.ratio) < 0.06


@pytest.mark.parametrize("left", DEPTHS)
def test_on_the_shared_cpu_a_depth_left_out_lies_in_an_interval_as_wide_as_it_honestly_is(left: int) -> None:
    """Recorded one after another while the host's mood moved by 20 %."""
    folder = RECORDINGS / "cpu-sglang-0.5.23"
    measured = {d: from_noise_recording(folder / f"noise_cpu_d{d}.json", d) for d in DEPTHS}
    measured[0] = from_noise_recording(folder / "noise_cpu_base.json", 0)
    predicted = left_out(measured, left)
    assert holds(predicted.ratio, seen_ratio(measured, left).centre)
    assert 0.05 < half_width(predicted.ratio) < 1.0


def h200_oracle() -> dict[int, dict[str, Sequence[float]]]:
    """Its servers told counts and no histograms; the counts are the oracle's."""
    raw = json.loads((ROOT / "perf" / "oracles" / "h200-llama8b-shape.json").read_text(encoding="utf-8"))["prompts"]
    return {d: {p: one["accepted_drafts_histogram"][str(d)] for p, one in raw.items()} for d in DEPTHS}


def recorded_sweep(folder: Path) -> dict[int, Measurement]:
    return {m.depth: m for m in (from_json(p.read_text()) for p in sorted(folder.glob("depth-*.json")))}


@pytest.mark.parametrize("folder", H200_SWEEPS, ids=lambda p: p.name)
def test_on_the_h200_every_depth_left_out_lies_in_a_useful_interval(folder: Path) -> None:
    """±3 % at most; beyond the deepest measured, at twice its depth, ±4 %."""
    measured = recorded_sweep(folder)
    for left in sorted(measured)[1:]:
        known = {d: m for d, m in measured.items() if d != left}
        predicted = of_sweep(known, expected=h200_oracle()).at(left)
        assert holds(predicted.ratio, seen_ratio(measured, left).centre), left
        assert holds(predicted.accept_length, measured[left].accept_length), left
        assert half_width(predicted.ratio) < (0.03 if left < max(measured) else 0.04), left


@pytest.mark.parametrize("folder", H200_SWEEPS, ids=lambda p: p.name)
def test_on_the_h200_five_steps_are_named_and_four_cannot_be_told_from_them(folder: Path) -> None:
    choice = choose(of_sweep(recorded_sweep(folder), expected=h200_oracle()).predictions())
    assert choice.best.depth == 5
    assert 4 in [p.depth for p in choice.rivals]


def test_expected_histograms_that_disagree_with_a_count_are_not_taken() -> None:
    measured = {
        d: replace(m, samples=tuple(replace(s, accepted_histogram=None) for s in m.samples))
        for d, m in night(seed=5).measured.items()
    }
    right = {d: {p: by_depth[d] for p, by_depth in counts("right").items()} for d in (1, 2, 3, 5)}
    wrong = {**right, 3: {**right[3], "kjv-01": (1, 2, 3, 4)}}
    assert isinstance(of_sweep(measured, expected=right).curve, FromHistograms)
    assert isinstance(of_sweep(measured, expected=wrong).curve, FromLengths)
    assert isinstance(of_sweep(measured).curve, FromLengths)


def test_a_published_h200_sweep_predicts_each_of_its_cycles_from_the_other_two() -> None:
    """5.91, 6.15 and 6.93 ms at 1, 2 and 5 steps of an 8B shape; two points, and what is taken for granted."""
    cycles = {1: 5.91, 2: 6.15, 5: 6.93}
    for left, value in cycles.items():
        line = depth_model.fit({d: Estimate(c) for d, c in cycles.items() if d != left}, bend=depth_model.BEND)
        seen = depth_model.bounds(line.at(left), line.freedom, depth_model.LEVEL)
        assert holds(seen, value)


def test_measured_depths_stand_as_they_were_measured() -> None:
    measured = night(seed=5).measured
    seen = of_sweep(measured).at(2)
    assert seen.measured
    assert seen.ratio.centre == pytest.approx(seen_ratio(measured, 2).centre, rel=1e-6)
    assert seen.accept_length == Interval(*[measured[2].accept_length] * 3)


def test_a_single_depth_is_held_against_the_plain_server_and_predicts_nothing() -> None:
    measured = night(seed=5).measured
    alone = of_sweep({d: measured[d] for d in (0, 2)})
    assert [p.depth for p in alone.predictions()] == [0, 2]
    with pytest.raises(ValueError, match="nothing can be said about 3 steps"):
        alone.at(3)


def test_a_sweep_without_baseline_is_refused() -> None:
    measured = night(seed=5).measured
    with pytest.raises(ValueError, match="takes the plain server, a depth and a prompt"):
        of_sweep({d: m for d, m in measured.items() if d})


# The depth to run


def prediction(depth: int, centre: float, *, far: float = 0.0, measured: bool = True) -> Prediction:
    one = Interval(1.0, 1.0, 1.0)
    return Prediction(depth, measured, one, one, Interval(centre - far, centre, centre + far))


PLAIN = prediction(0, 1.0)


def chosen(*predictions: Prediction) -> Choice:
    return choose((PLAIN, *predictions))


def test_the_smaller_depth_wins_within_one_percent() -> None:
    assert chosen(prediction(2, 1.195), prediction(3, 1.2)).best.depth == 2
    assert chosen(prediction(2, 1.185), prediction(3, 1.2)).best.depth == 3


def test_no_speculation_is_a_legal_answer() -> None:
    choice = chosen(prediction(1, 1.005), prediction(2, 0.9))
    assert choice.best.depth == 0
    assert str(choice) == "Best: no speculation. No other depth from 0 to 16 can be better by more than 1 %."


def test_a_measured_depth_wins_over_an_equal_one_that_was_not() -> None:
    choice = chosen(prediction(3, 1.2), prediction(2, 1.2, far=0.01, measured=False))
    assert choice.best.depth == 3


def test_a_better_depth_that_was_not_measured_is_named_as_such() -> None:
    choice = chosen(prediction(3, 1.2), prediction(4, 1.3, far=0.05, measured=False))
    assert str(choice).startswith(
        "Best: 4 steps, 1.300 × (1.250 to 1.350) the plain server by prediction, not measured: add it to the depths. "
        "Measured best: 3 steps, 1.200 ×."
    )


def test_what_can_be_better_by_no_more_than_a_tie_is_no_rival() -> None:
    close = prediction(3, 1.1, far=0.05, measured=False)
    clear = prediction(3, 1.1, far=0.2, measured=False)
    assert chosen(prediction(2, 1.2), close).rivals == ()
    assert [p.depth for p in chosen(prediction(2, 1.2), clear).rivals] == [3]


def test_the_typical_cycle_is_the_median_and_its_error_covers_the_true_one() -> None:
    rng, hit = np.random.default_rng(4), 0
    for _ in range(400):
        seen = depth_model.typical({"p": tuple(10 + rng.laplace(size=40))})
        hit += abs(seen.value - 10) <= 1.96 * seen.error
    assert hit / 400 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_handful_of_cycles_has_its_whole_range_as_error() -> None:
    seen = depth_model.typical({"p": (9.0, 10.0, 12.0)})
    assert (seen.value, seen.error) == (10.0, 3.0)
    assert depth_model.typical({"p": (10.0,)}).error == 0.5


def test_a_draft_that_is_never_accepted_has_a_curve_all_the_same() -> None:
    curve = from_histograms({1: (50, 0), 3: (50, 0, 0, 0)}, {1: 1.0, 3: 1.0}, tokens=50)
    assert [curve.acceptance(k) for k in (1, 3, 9)] == [0.0, 0.0, 0.0]
    assert curve.at(2, 0.025).centre == pytest.approx(1.0)
    assert from_lengths({1: 1.0, 3: 1.0}).at(2, 0.025).centre == pytest.approx(1.0)


def test_a_draft_that_is_always_accepted_has_one_too() -> None:
    curve = from_histograms({1: (0, 50), 3: (0, 0, 0, 50)}, {1: 2.0, 3: 4.0}, tokens=math.inf)
    assert curve.at(2, 0.025).centre == pytest.approx(3.0)
    assert curve.at(5, 0.025).upper >= 5.9


def test_counts_of_one_pass_and_of_four_say_the_same_about_acceptance() -> None:
    """Greedy passes repeat each other, so that more of them don't make acceptance more certain."""
    one, four = (of_sweep(night(seed=5, passes=n).measured).curve.at(4, 0.025) for n in (1, 4))
    assert one == four
    assert counts("right").keys() == {s.prompt for s in night(seed=5).measured[2].samples}


def test_an_empty_measurement_is_refused() -> None:
    measured = {0: measurement(0), 2: measurement(2, (sample("elsewhere"),))}
    with pytest.raises(ValueError, match="a prompt that all measurements have"):
        of_sweep(measured)


def test_where_noise_sends_the_line_below_zero_nothing_is_said_of_those_depths() -> None:
    """Cycles of 10 and 4 ms at 1 and 2 steps: the line is at -2 ms at 3."""
    cycles = {1: Estimate(10.0, 0.1), 2: Estimate(4.0, 0.1)}
    falling = model(Estimate(5.0, 0.01), cycles, from_lengths({1: 1.6, 2: 2.0}))
    assert [p.depth for p in falling.predictions()] == [0, 1, 2]
    with pytest.raises(ValueError, match="nothing can be said about 3 steps"):
        falling.at(3)

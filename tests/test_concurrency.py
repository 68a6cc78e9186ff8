"""Streams side by side: the steady window, throughput of one and of all, and times between tokens, by head."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from fixtures.analysis import concurrency
from fixtures.analysis.concurrency import Steady, figures, of_measurement, of_one, quantile, steady
from fixtures.analysis.measurement import from_json, to_json
from fixtures.analysis.streams import Level, Stream
from fixtures.report import concurrency as report
from tests.kit.builders import measurement, sample


def stream(lane: int = 0, sent_s: float = 0.0, *, ttft_ms: int = 100, gaps_ms: tuple[int, ...], tokens: int) -> Stream:
    gaps_us = " ".join(str(1000 * ms) for ms in (ttft_ms, *gaps_ms))
    return Stream("p0", 0, lane, tokens, None, "", sent_s, gaps_us)


TWO = Level(
    2,
    (
        stream(0, 0.0, ttft_ms=100, gaps_ms=(100, 100, 100), tokens=7),
        stream(1, 0.0, ttft_ms=200, gaps_ms=(100, 100, 100), tokens=7),
    ),
)
"""Tokens at 0.1, 0.2, 0.3, 0.4 s and at 0.2, 0.3, 0.4, 0.5 s; the first alone, then two a chunk."""


def test_one_wave_is_steady_from_the_last_first_token_to_the_first_last() -> None:
    assert steady(TWO) == Steady(pytest.approx(0.2), pytest.approx(0.4))


def test_a_closed_loop_is_steady_until_a_lane_has_nothing_more_to_do() -> None:
    follows = stream(0, 0.4, ttft_ms=100, gaps_ms=(100, 100), tokens=5)  # tokens at 0.5, 0.6, 0.7 s
    assert steady(Level(2, (*TWO.streams, follows))) == Steady(pytest.approx(0.2), pytest.approx(0.5))


def test_streams_that_never_all_went_at_once_have_no_window_and_no_throughput() -> None:
    apart = Level(2, (TWO.streams[0], stream(1, 1.0, gaps_ms=(100,), tokens=2)))
    assert steady(apart) is None
    assert math.isnan(figures(apart).aggregate)
    assert math.isnan(figures(apart).between_tokens_s[0])
    assert concurrency.summary(apart) == "no figures: never were all streams going at once"


def test_a_lane_that_gave_no_stream_leaves_no_window() -> None:
    assert steady(Level(3, TWO.streams)) is None


def test_throughput_together_counts_every_token_of_the_window_and_each_only_its_decoding() -> None:
    seen = figures(TWO)
    assert seen.aggregate == pytest.approx(8 / 0.2), "two chunks of two tokens from each stream, in 0.2 s"
    assert seen.per_stream == pytest.approx(2 / 0.1)


def test_waiting_for_a_first_token_lowers_what_comes_together_and_not_what_a_stream_decodes() -> None:
    first = (stream(0, 0.0, gaps_ms=(100, 100), tokens=3), stream(1, 0.0, gaps_ms=(100,) * 5, tokens=6))
    second = stream(0, 0.3, ttft_ms=200, gaps_ms=(100,), tokens=2)  # waits from 0.3 to 0.5 s
    seen = figures(Level(2, (*first, second)))
    assert steady(Level(2, (*first, second))) == Steady(pytest.approx(0.1), pytest.approx(0.6))
    assert seen.per_stream == pytest.approx(10.0)
    assert seen.aggregate == pytest.approx((2 + 5 + 2) / 0.5)


def test_tokens_inside_a_chunk_come_at_once() -> None:
    seen = figures(TWO)
    assert seen.between_tokens_s == (0.0, pytest.approx(0.1), pytest.approx(0.1)), "one in two waited for its chunk"


def test_of_one_token_a_chunk_every_one_waited() -> None:
    plain = Level(1, (stream(gaps_ms=(10, 20, 30, 40), tokens=5),))
    assert figures(plain).between_tokens_s == (pytest.approx(0.02), pytest.approx(0.04), pytest.approx(0.04))


def test_first_tokens_are_told_by_their_median_and_their_ninetieth_percentile() -> None:
    ten = tuple(stream(n, 0.0, ttft_ms=10 * (n + 1), gaps_ms=(500,), tokens=2) for n in range(10))
    assert figures(Level(10, ten)).ttft_s == (pytest.approx(0.05), pytest.approx(0.09))


def test_a_quantile_is_the_least_value_that_the_share_does_not_exceed() -> None:
    weighted = [(3.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    assert [quantile(weighted, q) for q in (0.0, 0.5, 0.75, 0.76, 1.0)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert math.isnan(quantile([], 0.5))


def test_accept_length_is_of_streams_that_count_for_themselves() -> None:
    counted = tuple(replace(s, verifies=3) for s in TWO.streams)
    assert figures(Level(2, counted)).accept_length == 2.0
    assert math.isnan(figures(Level(2, (counted[0], TWO.streams[1]))).accept_length)


def test_one_stream_alone_has_the_same_figures_from_its_samples() -> None:
    one = replace(sample(tokens=7, decode_s=0.3, ttft_s=0.1, verifies=3), gaps_us="100000 100000 100000 100000")
    seen = of_one(measurement(2, (one,)))
    assert (seen.per_stream, seen.aggregate) == (pytest.approx(20), pytest.approx(7 / 0.4))
    assert (seen.ttft_s, seen.accept_length) == ((0.1, 0.1), 2.0)
    assert seen.between_tokens_s == (0.0, pytest.approx(0.1), pytest.approx(0.1))


def test_a_measurement_without_levels_has_nothing_to_tell_of_several_streams() -> None:
    assert of_measurement(measurement(2)) == ()
    assert list(report.lines({0: measurement(0), 2: measurement(2)})) == []


def test_levels_are_read_back_as_they_were_written_and_older_files_have_none() -> None:
    full = measurement(2, levels=(replace(TWO, refused=("p1 (pass 0): HTTP 500",), notes=("a note",)),))
    assert from_json(to_json(full)) == full
    older = json.loads(to_json(measurement(2)))
    del older["levels"]
    for each in older["samples"]:
        del each["gaps_us"]
    assert from_json(json.dumps(older)) == measurement(2)


def test_arrivals_follow_from_the_gaps_and_the_time_of_sending() -> None:
    assert stream(0, 2.0, ttft_ms=50, gaps_ms=(5, 10), tokens=3).arrivals_s == pytest.approx((2.05, 2.055, 2.065))


# --- what is told


def test_the_table_has_a_line_per_depth_and_number_of_streams_beside_the_plain_servers() -> None:
    plain = replace(TWO, streams=tuple(replace(s, tokens=4) for s in TWO.streams))
    rows = report.rows({0: measurement(0, levels=(plain,)), 2: measurement(2, levels=(TWO,))})
    assert [row[:2] for row in rows] == [("0", "1"), ("0", "2"), ("2", "1"), ("2", "2")]
    assert rows[3] == ("2", "2", "20.0", "40.0", "2.000", "–", "100.0 / 200.0", "0.0 / 100.0 / 100.0")
    assert rows[1][4] == "–"


def test_what_was_refused_and_what_was_noted_is_told_below_the_table() -> None:
    level = replace(TWO, refused=("p1 (pass 0): HTTP 500",), notes=("a note",))
    told = list(report.lines({2: measurement(2, levels=(level,))}))
    assert told[2:] == ["depth 2, 2 streams: a note", "depth 2, 2 streams: 1 refused: p1 (pass 0): HTTP 500"]


def test_what_the_json_carries_has_no_numbers_that_are_none() -> None:
    assert concurrency.as_info(figures(Level(2, ())))["ttft_s"] == [None, None]
    assert concurrency.as_info(figures(TWO))["aggregate"] == pytest.approx(40)


@pytest.mark.parametrize(
    ("level", "problem"),
    [
        (None, "2 streams at once: not measured"),
        (
            Level(2, (TWO.streams[0],), ("p1 (pass 0): HTTP 500",)),
            "2 streams at once: 1 good completions of 2, at least 90% are needed. p1 (pass 0): HTTP 500",
        ),
        (
            Level(2, TWO.streams[:1] * 2),
            "2 streams at once: never were all of them going at the same time; ask for longer completions",
        ),
    ],
)
def test_a_level_that_gives_no_figures_says_why(level: Level | None, problem: str) -> None:
    levels = (level,) if level else ()
    assert concurrency.problems(measurement(2, levels=levels), (2,), 0.9) == (problem,)


def test_a_level_with_figures_has_no_problem() -> None:
    assert concurrency.problems(measurement(2, levels=(TWO,)), (2,), 0.9) == ()


def test_a_level_that_is_missing_is_told_with_what_the_measurement_notes() -> None:
    note = "booted again, which came to nothing: The server died before it was ready"
    seen = replace(measurement(2, levels=(TWO,)), notes=(note,))
    assert concurrency.problems(seen, (2, 8), 0.9) == ("8 streams at once: not measured", note)
    assert concurrency.problems(seen, (2,), 0.9) == ()

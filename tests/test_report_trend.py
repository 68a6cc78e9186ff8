"""The trend: storages on disk, series of nights that belong together, and the sentences about them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import replay
from fixtures.analysis.change_points import change_points
from fixtures.analysis.measurement import Measurement
from fixtures.report import trend
from fixtures.report.trend import Night, sentences, series
from tests.kit.builders import RECORDINGS, measurement, slowed
from tests.kit.reports import flat

STATS = dict.fromkeys(("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3", "total", "ops"), 0.005)

SLOWER_FROM = 6
"""Index of the first recorded night with a slower verify."""


def run(when: str, *extra_info: Mapping[str, Any], test: str = "test_throughput") -> str:
    """A run as pytest-benchmark stores it."""
    marks = [{"name": test, "fullname": f"perf/{test}", "stats": STATS, "extra_info": dict(i)} for i in extra_info]
    return json.dumps({"machine_info": {"cpu": {}}, "commit_info": {}, "datetime": when, "benchmarks": marks})


def info(m: Measurement) -> dict[str, Any]:
    """What replay stores of a measurement beside its times."""
    return replay.figures(m, baseline=measurement(0), throughput_floor=None, accept_length_floor=None)


def store(folder: Path, *runs: str, machine: str = "Linux-CPython-3.12-64bit") -> Path:
    """A storage with these runs."""
    (folder / machine).mkdir(parents=True, exist_ok=True)
    for n, text in enumerate(runs, start=1):
        (folder / machine / f"{n:04}_run.json").write_text(text)
    return folder


def test_a_stored_run_comes_back_with_its_figures_and_context(tmp_path: Path) -> None:
    (night,) = trend.read(store(tmp_path, run("2026-11-29T03:00:00+00:00", info(measurement(2))))).nights
    assert (night.depth, night.when) == (2, "2026-11-29T03:00:00+00:00")
    assert (night.ratio, night.accept_length, night.cycle_ms) == pytest.approx((2.0, 2.0, 10.0))
    assert night.context["SGLang"] == "0.5.23"


def test_a_night_without_a_ratio_keeps_its_other_figures(tmp_path: Path) -> None:
    nothing = {**info(measurement(2)), "ratio_to_baseline": None}
    (night,) = trend.read(store(tmp_path, run("2026-11-29T03:00:00+00:00", nothing))).nights
    assert math.isnan(night.ratio)
    assert night.accept_length == 2


def test_nights_of_several_machines_folders_and_pythons_are_read_together(tmp_path: Path) -> None:
    one = run("2026-11-28T03:00:00+00:00", info(measurement(2)))
    store(tmp_path, one)
    store(tmp_path, one, machine="Linux-CPython-3.14-64bit")
    assert len(trend.read(tmp_path).nights) == 2


def test_what_is_no_run_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    good = run("2026-11-29T03:00:00+00:00", info(measurement(2)))
    stored = trend.read(store(tmp_path, "", "[]", '{"benchmarks": 3}', good))
    assert (len(stored.nights), stored.unreadable) == (1, 3)


def test_figures_without_a_key_are_counted_and_benchmarks_of_others_are_not(tmp_path: Path) -> None:
    keyless = {k: v for k, v in info(measurement(2)).items() if k != "comparability"}
    stored = trend.read(store(tmp_path, run("2026-11-29T03:00:00+00:00", keyless, {"rows": 3})))
    assert (stored.nights, stored.unreadable, stored.without_key) == ((), 0, 1)


def test_no_storage_is_no_night(tmp_path: Path) -> None:
    assert trend.read(tmp_path / "nowhere").nights == ()


def test_a_renamed_test_stays_in_its_series_and_another_key_does_not(tmp_path: Path) -> None:
    here, elsewhere = measurement(2), measurement(2, host={"cpu": "another", "cores": 4})
    days = [f"2026-11-2{n}T03:00:00+00:00" for n in range(4)]
    runs = [
        run(days[0], info(here), test="test_old_name"),
        run(days[1], info(here), info(measurement(3))),
        run(days[2], info(elsewhere)),
    ]
    tonight = trend.tonight({0: measurement(0), 2: replace(slowed(here, 1.01), started_at=days[3])})
    plain, one = series(trend.read(store(tmp_path, *runs)).nights, tonight)
    assert len(plain.nights) == 1
    assert [night.when for night in one.nights] == [days[0], days[1], days[3]]


def test_a_night_that_is_stored_already_is_not_counted_twice(tmp_path: Path) -> None:
    m = replace(measurement(2), started_at="2026-11-29T03:00:00+00:00")
    stored = trend.read(store(tmp_path, run("2026-11-29T03:20:00+00:00", info(m))))
    _, one = series(stored.nights, trend.tonight({0: measurement(0), 2: m}))
    assert len(one.nights) == 1


def test_nights_are_in_the_order_of_time_whatever_their_files_are_called() -> None:
    nights = flat(2, [1.5, 1.6, 1.7])
    (one,) = series(reversed(nights[:-1]), nights[-1:])
    assert one.values("ratio") == [1.5, 1.6, 1.7]


def noisy(levels: list[float]) -> tuple[Night, ...]:
    noise = np.random.default_rng(3).normal(size=len(levels))
    return flat(2, [float(x * (1 + 0.001 * e)) for x, e in zip(levels, noise, strict=True)])


def test_a_new_sglang_is_a_landmark_and_named_beside_the_change_it_came_with() -> None:
    nights = [
        replace(night, context={"SGLang": "0.5.23" if n < 30 else "0.5.24", "flags": "a"})
        for n, night in enumerate(noisy([1.5] * 30 + [1.47] * 15))
    ]
    (one,) = series(nights[:-1], nights[-1:])
    assert [(mark.at, mark.text) for mark in one.landmarks] == [(30, "SGLang 0.5.23 → 0.5.24")]
    assert sentences(one) == ("2 steps: throughput × plain -2.0 % on 2026-01-31, with SGLang 0.5.23 → 0.5.24.",)


def test_a_change_that_nothing_explains_says_so() -> None:
    nights = noisy([1.5] * 30 + [1.53] * 15)
    (one,) = series(nights[:-1], nights[-1:])
    assert sentences(one) == ("2 steps: throughput × plain +2.0 % on 2026-01-31, with nothing else known to be new.",)


def test_a_slow_fall_is_told_in_nights() -> None:
    nights = noisy([1.5] * 60 + [1.5 * (1 - 0.012 * n / 20) for n in range(21)])
    (one,) = series(nights[:-1], nights[-1:])
    (told,) = sentences(one)
    assert told.startswith("2 steps: throughput × plain fell slowly, by 1.")
    assert "nights, since 2026-03-0" in told


def test_other_context_is_named_without_its_digest() -> None:
    before, after = flat(2, [1.5, 1.5])
    (one,) = series([replace(before, context={"flags": "abc"})], [replace(after, context={"flags": "def", "GPU": "1"})])
    assert [mark.text for mark in one.landmarks] == ["new flags, new GPU"]


def test_a_thousand_nights_of_five_depths_are_read_in_a_second(tmp_path: Path) -> None:
    infos = [info(measurement(depth)) for depth in (1, 2, 3, 5, 10)]
    store(tmp_path, *[run(f"2026-01-01T00:00:{n:04}", *infos) for n in range(1000)])
    began = time.process_time()
    stored = trend.read(tmp_path)
    assert time.process_time() - began < 1
    assert len(stored.nights) == 5000


def test_a_verify_that_became_slower_on_the_cpu_engine_is_seen_in_the_storage() -> None:
    """Twelve sweeps of SGLang on a busy machine, as stored (recordings/cpu-sglang-0.5.23/nights/README.md).

    So few nights that scatter so much are on the edge of a chance of 0.5 %: throughput is marked, cycle time is cut at
    2 % only, and there on its very night.
    """
    stored = trend.read(RECORDINGS / "cpu-sglang-0.5.23" / "nights")
    *earlier, tonight = sorted((n for n in stored.nights if n.depth == 1), key=lambda night: night.when)
    (one,) = series(earlier, [tonight])
    assert len(one.nights) == 12
    (lost,) = one.courses["ratio"].changes
    assert lost.at == pytest.approx(SLOWER_FROM, abs=3)
    assert lost.share < -0.4
    assert any("throughput × plain" in text and "nothing else known to be new" in text for text in sentences(one))
    assert one.courses["accept_length"].changes == ()
    cycles = np.array(one.values("cycle_ms"))
    assert change_points(cycles, np.random.default_rng(0), level=0.02) == [SLOWER_FROM]
    assert change_points(cycles[:SLOWER_FROM], np.random.default_rng(0), level=0.02) == []

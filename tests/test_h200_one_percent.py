"""What docs/h200-one-percent.md says of eight nights of drills follows from the kept measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pytest

from fixtures import drill_nights, rehearsal
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Outcome, Verdict
from fixtures.report.recorded import phases_table
from fixtures.report.rehearsed import QUIET, Record, from_json

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "perf/recordings/h200/2026-11-30-one-percent"
PAGE = (ROOT / "docs/h200-one-percent.md").read_text(encoding="utf-8")
NIGHTS = list(drill_nights.kept(FOLDER, 2))
DRILLS = ("slow-verify=1%", "slow-verify=3%", QUIET)


def again(quiet: int, tmp_path: Path) -> Record:
    """The kept nights, judged against so many of those without a fault."""
    into = tmp_path / f"{quiet}.json"
    where = ["--profile", "h200-llama8b-shape", "--quiet", str(quiet), "--into", str(into)]
    rehearsal.main(["--again", str(FOLDER), *where])
    return from_json(into.read_text(encoding="utf-8"))


def test_the_table_of_larger_references_is_the_recordings(tmp_path: Path) -> None:
    rows = ["| nights in the reference | verify 1 % slower | 3 % | no fault |", "|---|---|---|---|"]
    for quiet in (1, 2, 3, 4):
        nights = again(quiet, tmp_path).nights
        worths = [", ".join(night.worth for night in nights if night.injected == drill) or "–" for drill in DRILLS]
        rows.append(f"| {' | '.join((str(quiet), *worths))} |")
    assert "\n".join(["<!-- nights -->", *rows, "<!-- /nights -->"]) in PAGE


def open_night(quiet: int) -> Verdict:
    """Of the night that a single one without a fault leaves open, against so many."""
    words = ["--again", str(FOLDER), "--profile", "h200-llama8b-shape", "--into", "unwritten"]
    day = rehearsal.opened(rehearsal.parser().parse_args(words))
    day.judging.reference = drill_nights.together([n for n in NIGHTS if n.injected == QUIET][:quiet])
    gate = day.judging.gate(NIGHTS[5].plain)
    assert gate
    return gate.cycle_time(NIGHTS[5].tonight()[2])


def test_the_night_that_is_left_open_lost_what_the_page_says() -> None:
    seen = open_night(1)
    assert seen.outcome is Outcome.UNDECIDED
    lost, least, most = (100 * (1 - share) for share in (seen.estimate, seen.upper, seen.lower))
    assert f"it lost {lost:.1f} % ({least:+.1f} % to {most:+.1f} %), where 1 % may be claimed" in PAGE


def test_with_more_nights_it_is_told_by_as_little_as_the_page_says() -> None:
    two, three, four = (100 * (1 - open_night(quiet).upper) for quiet in (2, 3, 4))
    assert 0 < two < three < four
    assert f"is {two:.2f} %, {three:.2f} % and {four:.2f} % with two, three and four nights" in PAGE


def test_the_table_of_phases_is_the_recordings() -> None:
    assert f"<!-- phases -->\n{phases_table(FOLDER)}\n<!-- /phases -->" in PAGE


def figures(of: Callable[[Measurement], float], injected: str) -> list[float]:
    """By night, of the nights with this drill."""
    return [of(night.speculative) for night in NIGHTS if night.injected == injected]


def verify(measurement: Measurement) -> float:
    """Milliseconds."""
    assert measurement.phases
    return measurement.phases.mean_ms["verify"]


@pytest.mark.parametrize("figure", [lambda m: m.seconds_per_cycle, verify], ids=["cycle", "verify"])
def test_every_night_of_one_percent_is_above_all_without_a_fault(figure: Callable[[Measurement], float]) -> None:
    slower, quiet = (figures(figure, injected) for injected in ("slow-verify=1%", QUIET))
    assert (len(slower), len(quiet)) == (3, 4)
    assert min(slower) > max(quiet)
    assert 100 * stdev(map(math.log, quiet)) == pytest.approx(0.1, abs=0.05)


def test_a_verify_takes_as_much_longer_as_the_page_says() -> None:
    quiet = fmean(figures(verify, QUIET))
    one, three = ([ms - quiet for ms in figures(verify, f"slow-verify={n}%")] for n in (1, 3))
    assert f"{min(one):.2f} to {max(one):.2f} ms more than theirs on average, that of 3 % {three[0]:.2f} ms" in PAGE

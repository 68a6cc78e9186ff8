"""An attribution told in one sentence whose figures add up."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fixtures.analysis.cycle import Attribution, Change, Share, attribute, attributed
from fixtures.analysis.intervals import Interval
from fixtures.analysis.lines import Estimate
from fixtures.analysis.sentences import apportioned, points, sentence
from fixtures.analysis.sides import Part, of_measurement
from tests.kit.nights import QUIET, Fault, night


def near(x: float, far: float = 0.001) -> Interval:
    return Interval(x - far, x, x + far)


def exact(x: float) -> Interval:
    return Interval(x, x, x)


def change(then: float, now: float, far: float = 0.0) -> Change:
    return Change(then, now, near(math.log(now / then), far))


def told(fault: Fault, depth: int = 2, *, phased: bool = False, by_cost: bool = False) -> str:
    """The sentence on a night with that fault."""
    then, now = night(seed=11), night(fault, seed=1)
    sides = [
        of_measurement(
            n.measured[depth], n.measured[0] if by_cost else None, phases=n.phases[depth] if phased else None
        )
        for n in (then, now)
    ]
    return sentence(attribute(*sides))


def test_a_slower_verify_reads_as_in_the_reports_example() -> None:
    seen = attributed(
        2,
        accept=change(2.07, 2.07),
        cycle=change(19.85, 22.0, 0.003),
        phases=({Part.VERIFY: Estimate(18.7, 0.01)}, {Part.VERIFY: Estimate(20.8, 0.01)}),
    )
    assert sentence(seen) == (
        "2 steps lost 9.8 % (±0.3): verify 18.70 → 20.80 ms explains 9.6; unexplained 0.2 (±0.3); "
        "accept length unchanged."
    )


def test_counts_that_are_equal_are_unchanged_to_the_count() -> None:
    assert told(QUIET).endswith("; accept length unchanged, to the count.")
    assert told(Fault(slower={Part.VERIFY: 1.02})) == (
        "2 steps lost 1.6 % (±0.02): cycle 6.15 → 6.25 ms explains 1.6; accept length unchanged, to the count."
    )


def test_accept_length_names_its_sources() -> None:
    assert told(Fault("wrong layers")) == (
        "2 steps lost 14.0 % (±0.02): accept length 2.068 → 1.779 explains 14.0 (kjv 7.1, pydoc 6.9); cycle unchanged."
    )


def test_sources_go_with_the_verb_and_one_that_went_the_other_way_is_below_zero() -> None:
    seen = attributed(2, accept=change(2.0, 1.8), cycle=change(20.0, 17.0))
    length = math.log(0.9)
    told_ = sentence(replace(seen, by_source={"kjv": 1.1 * length, "code": -0.1 * length}))
    assert "accept length 2.000 → 1.800 costs 10.8 (kjv 11.9, code -1.1)" in told_


def test_a_part_that_went_the_other_way_gives_back_or_costs() -> None:
    lost = attributed(2, accept=change(2.0, 2.1), cycle=change(20.0, 23.1))
    gained = attributed(2, accept=change(2.0, 1.9), cycle=change(20.0, 17.0))
    assert (
        sentence(lost)
        == "2 steps lost 9.1 %: cycle 20.00 → 23.10 ms explains 13.7; accept length 2.000 → 2.100 gives back 4.6."
    )
    assert (
        sentence(gained)
        == "2 steps gained 11.8 %: cycle 20.00 → 17.00 ms explains 17.2; accept length 2.000 → 1.900 costs 5.4."
    )


def test_parts_that_cancel_each_other_are_told_all_the_same() -> None:
    seen = attributed(2, accept=change(2.0, 2.2, 0.0), cycle=change(20.0, 22.0, 0.004))
    assert sentence(seen) == (
        "2 steps: no certain change, +0.0 % (±0.4): accept length 2.000 → 2.200 brings 9.5; "
        "cycle 20.00 → 22.00 ms costs 9.5."
    )


def test_what_may_not_have_moved_has_its_size_and_its_error() -> None:
    seen = attributed(2, accept=change(2.0, 2.0), cycle=change(20.0, 20.4, 0.05))
    assert sentence(seen) == (
        "2 steps: no certain change, -2.0 % (±5.0): cycle 20.00 → 20.40 ms, -2.0 (±5.0); accept length unchanged."
    )


def test_the_plain_server_has_tokens_and_no_accept_length() -> None:
    then, now = (night(f, seed=s).measured[0] for f, s in ((QUIET, 11), (Fault(slower={Part.CYCLE: 1.02}), 1)))
    seen = attribute(of_measurement(then), of_measurement(now))
    assert re.fullmatch(
        r"The plain server lost 2\.0 % \(±0\.0\d\): a token 4\.60 → 4\.69 ms explains 2\.0\.", sentence(seen)
    )


def test_where_servers_alternated_throughput_is_against_the_plain_server_and_cycles_in_plain_tokens() -> None:
    assert re.fullmatch(
        r"2 steps lost 1\.6 % \(±0\.0\d\) against the plain server: "
        r"cycle 1\.337 → 1\.359 plain tokens explains 1\.6; accept length unchanged, to the count\.",
        told(Fault(slower={Part.VERIFY: 1.02}), by_cost=True),
    )


def test_too_few_samples_are_admitted() -> None:
    seen = attributed(2, accept=change(2, 2), cycle=Change(20.0, 21.0, Interval(-math.inf, 0.05, math.inf)))
    assert sentence(seen).startswith("2 steps: no certain change, -4.9 % (too few samples to say how sure): ")


@pytest.mark.parametrize(
    ("values", "total", "printed"),
    [
        ((3.33, 3.33, 3.34), 10.0, (3.3, 3.3, 3.4)),
        ((-0.05, -0.05), -0.1, (0.0, -0.1)),
        ((12.34, -2.34), 10.0, (12.3, -2.3)),
        ((), 0.0, ()),
    ],
)
def test_tenths_are_rounded_so_that_they_add_up(
    values: tuple[float, ...], total: float, printed: tuple[float, ...]
) -> None:
    assert apportioned(values, total) == pytest.approx(printed)


def test_printed_parts_add_up_to_the_printed_change_and_lie_within_a_tenth_of_their_own() -> None:
    rng = np.random.default_rng(9)
    for _ in range(500):
        logs = rng.normal(0, 0.05, 5)
        shares = tuple(Share(part, exact(x)) for part, x in zip(list(Part)[:5], logs, strict=True))
        whole = float(sum(logs))
        total, parts = points(Attribution(2, exact(whole), Change(1, 1, exact(0)), shares))
        assert sum(parts) == pytest.approx(total, abs=1e-9)
        assert total == pytest.approx(100 * math.expm1(whole), abs=0.051)
        scale = 100 * math.expm1(whole) / whole
        assert max(abs(p - scale * x) for p, x in zip(parts, logs, strict=True)) < 0.11


def test_a_quiet_night_with_phases_says_how_well_each_is_known() -> None:
    seen = told(QUIET, phased=True)
    assert seen.startswith("2 steps: no certain change, ")
    assert re.search(r"verify 5\.\d\d → 5\.\d\d ms, [+-]\d\.\d \(±0\.\d\)", seen)
    assert "extend 0.35 → 0.35 ms, +0.0 (±0." in seen

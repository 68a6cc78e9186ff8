"""Speculation pays at least what its floor says, relative to the plain server of the same session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis import verdicts
from fixtures.analysis.intervals import Rule
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict
from fixtures.profiles import Profile, numbers

pytestmark = pytest.mark.judges("throughput")


@pytest.mark.benchmark(group="eagle3")
def test_eagle3_baseline_throughput(baseline: Measurement, replayed: Callable[[Measurement], None]) -> None:
    """The plain server has no floor within one session; the reference and --benchmark-compare-fail gate it."""
    replayed(baseline)


@pytest.mark.benchmark(group="eagle3")
def test_eagle3_throughput_holds_its_floor(
    *,
    measurement: Measurement,
    paired_baseline: Measurement,
    floor: Callable[[str], float],
    floor_rule: Rule,
    profile: Profile,
    judge: Callable[[Verdict], None],
    replayed: Callable[[Measurement], None],
) -> None:
    replayed(measurement)
    judge(
        verdicts.throughput(
            measurement,
            paired_baseline,
            floor("throughput"),
            accept_length_floor=numbers(profile.floors.accept_length).get(measurement.depth),
            rule=floor_rule,
        )
    )

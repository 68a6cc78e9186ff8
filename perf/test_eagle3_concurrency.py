"""Several streams at once are served as well as one."""

from __future__ import annotations

import pytest

from fixtures.analysis import concurrency
from fixtures.analysis.measurement import Measurement
from fixtures.profiles import Profile

pytestmark = pytest.mark.judges("throughput")


def test_eagle3_baseline_serves_several_streams(baseline: Measurement, profile: Profile) -> None:
    serves(baseline, profile)


def test_eagle3_several_streams_are_served(measurement: Measurement, profile: Profile) -> None:
    serves(measurement, profile)


def serves(measurement: Measurement, profile: Profile) -> None:
    asked = profile.workload
    if not asked.levels:
        pytest.skip("the profile asks for one stream at a time (workload.concurrency)")
    problems = concurrency.problems(measurement, asked.levels, asked.good_samples)
    assert not problems, "\n".join([*problems, f"Server log: {measurement.server.log}"])

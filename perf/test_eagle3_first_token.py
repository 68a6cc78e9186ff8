"""Speculation makes nobody wait much longer for the first token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis import first_token
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict
from fixtures.profiles import Profile

pytestmark = pytest.mark.judges("throughput")


def test_eagle3_time_to_first_token_holds_its_limit(
    measurement: Measurement, paired_baseline: Measurement, profile: Profile, judge: Callable[[Verdict], None]
) -> None:
    most = profile.floors.ttft.get(measurement.depth)
    if most is None:
        pytest.skip("the profile has no floors.ttft for this depth")
    judge(first_token.verdict(measurement, paired_baseline, most))

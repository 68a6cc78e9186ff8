"""Over the depths of one session a deeper draft never commits fewer tokens per verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from fixtures.analysis import accept_length
from fixtures.analysis.counts import Counts
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict
from fixtures.profiles import Profile

pytestmark = pytest.mark.judges("acceptance")


def test_eagle3_accept_length_does_not_fall_with_depth(
    measurement: Measurement,
    shallower: Mapping[int, Mapping[str, Counts]],
    oracles_shallower: Mapping[int, Mapping[str, Counts]],
    profile: Profile,
    judge: Callable[[Verdict], None],
) -> None:
    if measurement.sampled:
        pytest.skip("nothing compared: decoding samples, so the depths' texts differ, and with them what is accepted")
    known = shallower or oracles_shallower
    if not known:
        pytest.skip(f"nothing compared: {measurement.depth} steps have no shallower depth, measured or in an oracle")
    tolerance = profile.floors.depth_tolerance
    judge(accept_length.depth_curve(measurement, known, tolerance=tolerance, of_oracle=not shallower))

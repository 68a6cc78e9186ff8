"""Speculation changes when tokens come, never which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict

pytestmark = pytest.mark.judges("acceptance")


def test_eagle3_text_is_the_baselines(
    measurement: Measurement, judge_text: Callable[[Measurement], Verdict], judge: Callable[[Verdict], None]
) -> None:
    if measurement.sampled:
        pytest.skip("nothing compared: above temperature 0 no two texts need be equal")
    judge(judge_text(measurement))

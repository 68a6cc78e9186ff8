"""Speculation changes when tokens come, never which."""

from __future__ import annotations

from collections.abc import Callable

from fixtures.analysis import verdicts
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict
from fixtures.profiles import Profile


def test_eagle3_text_is_the_baselines(
    measurement: Measurement, baseline: Measurement, profile: Profile, judge: Callable[[Verdict], None]
) -> None:
    judge(verdicts.identical_text(measurement, baseline, allowed_share=profile.workload.differing_prompts))

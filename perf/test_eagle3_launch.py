"""What runs is what was asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis.checks import Finding, named, unsilenced
from fixtures.analysis.conditions import of_launch
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.witnesses import Taken, nccl_findings
from fixtures.profiles import Profile

Findings = Callable[[Measurement, tuple[Finding, ...]], None]


def test_eagle3_server_is_what_was_asked(
    measurement: Measurement, beside: Measurement, profile: Profile, nothing_found: Findings
) -> None:
    nothing_found(measurement, findings(measurement, beside, profile))


def test_eagle3_baseline_does_not_speculate(baseline: Measurement, profile: Profile, nothing_found: Findings) -> None:
    nothing_found(baseline, findings(baseline, baseline, profile))


def test_eagle3_every_rank_has_the_nccl_settings(
    measurement: Measurement, profile: Profile, nothing_found: Findings
) -> None:
    if not profile.nccl.every:
        pytest.skip("the profile has no NCCL settings")
    if not measurement.server.arguments[1:]:
        pytest.skip("nothing checked: what a server of somebody else's has in its environment can't be seen")
    taken = [Taken(**said) for said in measurement.server.nccl_taken]
    found = nccl_findings(profile.nccl.every, measurement.server.witnesses, taken)
    nothing_found(measurement, unsilenced(found, named(profile.checks.silenced)))


def findings(measurement: Measurement, baseline: Measurement, profile: Profile) -> tuple[Finding, ...]:
    found = of_launch(measurement, baseline, max_running_requests=profile.launch.max_running_requests)
    if found is None:
        pytest.skip(f"nothing checked: {measurement.server.log} doesn't say what runs (/server_info)")
    return unsilenced(found, named(profile.checks.silenced))

"""The NCCL settings gain time, or cost none: the fastest depth is measured once more without them (nccl.ab)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis.checks import Finding, named, unsilenced
from fixtures.analysis.conditions import of_launch
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.nccl_gain import NcclGain, headline
from fixtures.analysis.verdicts import Verdict
from fixtures.analysis.witnesses import nccl_findings, untuned_findings
from fixtures.profiles import Profile

pytestmark = pytest.mark.judges("cycle")


def test_eagle3_nccl_settings_cost_no_time(
    *,
    nccl_gain: NcclGain,
    nccl_verdict: Verdict,
    profile: Profile,
    nothing_found: Callable[[Measurement, tuple[Finding, ...]], None],
    judge: Callable[[Verdict], None],
    request: pytest.FixtureRequest,
) -> None:
    request.node.user_properties.append(("nccl gain", headline(nccl_gain)))
    nothing_found(nccl_gain.untuned, unlike(nccl_gain, profile))
    judge(nccl_verdict)


def unlike(gain: NcclGain, profile: Profile) -> tuple[Finding, ...]:
    """What the untuned server has that it was to lack, and what else sets it apart from the tuned one."""
    limit = profile.launch.max_running_requests
    launched = of_launch(gain.untuned, gain.tuned, max_running_requests=limit) or ()
    witnesses = gain.untuned.server.witnesses
    kept = nccl_findings(profile.nccl.required, witnesses, ()) if profile.nccl.required else ()
    found = (*untuned_findings(profile.nccl.settings, witnesses), *kept, *launched)
    return unsilenced(found, named(profile.checks.silenced))

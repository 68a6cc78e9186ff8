"""A cycle costs at most what its ceiling says, in tokens of the plain server of the same session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis import verdicts
from fixtures.analysis.intervals import Rule
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict

pytestmark = pytest.mark.judges("cycle")


def test_eagle3_cycle_costs_no_more_than_its_ceiling(
    measurement: Measurement,
    paired_baseline: Measurement,
    floor: Callable[[str], float],
    floor_rule: Rule,
    judge: Callable[[Verdict], None],
) -> None:
    judge(verdicts.cycle_cost(measurement, paired_baseline, floor("cycle_cost"), rule=floor_rule))

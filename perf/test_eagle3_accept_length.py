"""Tokens committed per verify: a property of the pair, exact where an oracle knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from fixtures.analysis import accept_length, verdicts
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.verdicts import Verdict

pytestmark = pytest.mark.judges("acceptance")


def test_eagle3_accept_length_holds_its_floor(
    measurement: Measurement, floor: Callable[[str], float], judge: Callable[[Verdict], None]
) -> None:
    judge(accept_length.verdict(measurement, floor("accept_length")))


def test_eagle3_accept_length_is_possible(measurement: Measurement, judge: Callable[[Verdict], None]) -> None:
    judge(accept_length.bounds(measurement))


def test_eagle3_verify_counts_equal_the_oracles(
    measurement: Measurement, oracle_verifies: Mapping[str, int] | None, judge: Callable[[Verdict], None]
) -> None:
    if oracle_verifies is None:
        pytest.skip("the profile names no oracle, so there is nothing exact to compare with")
    judge(verdicts.oracle_counts(measurement, oracle_verifies))

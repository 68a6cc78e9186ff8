"""The draft is fed what it was trained on: acceptance at its first position is the expected one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis.verdicts import Verdict

pytestmark = pytest.mark.judges("acceptance")


def test_eagle3_first_guess_is_accepted_as_expected(
    first_acceptance: Verdict | None, judge: Callable[[Verdict], None]
) -> None:
    if first_acceptance is None:
        pytest.skip("position 1 isn't known, or nothing says what to expect of it: docs/attribution.md")
    judge(first_acceptance)

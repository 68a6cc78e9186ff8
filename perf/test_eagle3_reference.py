"""Nothing is worse than in the accepted reference: no slower cycle, no lower accept length, no prompt that is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.analysis.gate import Gate
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.regressions import Tonight
from fixtures.analysis.verdicts import Verdict

Judge = Callable[[Verdict], None]


@pytest.mark.judges("cycle")
def test_eagle3_plain_server_is_no_slower_than_the_references(gate: Gate, plain_tonight: Tonight, judge: Judge) -> None:
    judge(gate.cycle_time(plain_tonight))


def test_eagle3_no_depth_of_the_reference_is_gone(
    gate: Gate, baseline: Measurement, depths_known: frozenset[int], judge: Judge
) -> None:
    judge(gate.prompts(0, {0: baseline}))
    for verdict in gate.missing(depths_known):
        judge(verdict)


def test_eagle3_no_prompt_of_the_reference_is_gone(gate: Gate, measurement: Measurement, judge: Judge) -> None:
    judge(gate.prompts(measurement.depth, {measurement.depth: measurement}))


@pytest.mark.judges("cycle")
def test_eagle3_cycle_is_no_slower_than_the_references(gate: Gate, tonight: Tonight, judge: Judge) -> None:
    judge(gate.cycle_time(tonight))


@pytest.mark.judges("acceptance")
def test_eagle3_accept_length_is_the_references(gate: Gate, tonight: Tonight, judge: Judge) -> None:
    judge(gate.accept_length(tonight.measurement))

"""Twenty boots, measurements and stops in one session: the suite holds no more after the last than after the first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit import tiny
from tests.kit.suite import Suite

DEPTHS = (1, 2, 3, 5, *range(10, 25))
"""With the plain server, twenty."""
SETTLED = "steps03"
"""By then everything that is loaded once is loaded."""
GROWTH = 1.05


def held_after_each_depth(suite: Suite) -> dict[str, Mapping[str, Any]]:
    """By the id of the depth ("steps01"), what the process held after its last test."""
    lines = map(json.loads, (suite.folder / "soak.jsonl").read_text().splitlines())
    return {match[1]: line for line in lines if (match := re.search(r"\[(steps\d+)\]$", line["test"]))}


def soak(suite: Suite, *arguments: str, limit_s: float) -> None:
    """Runs the sweep and compares."""
    run = suite.run(
        "-k", "eagle3", "-p", "tests.kit.soak", *arguments, limit_s=limit_s, SOAK=str(suite.folder / "soak.jsonl")
    )
    assert suite.finished() == [0, *DEPTHS], run.output
    assert run.left == []
    held = held_after_each_depth(suite)
    assert len(held) == len(DEPTHS)
    settled = held[SETTLED]
    for depth, now in held.items():
        if depth > SETTLED:
            assert now["children"] == 0, depth
            assert now["descriptors"] <= settled["descriptors"], depth
            assert now["threads"] <= settled["threads"], depth
            assert now["memory"] <= settled["memory"] * GROWTH, depth


@pytest.mark.slow
@pytest.mark.faults
def test_twenty_rounds_of_the_stand_in_grow_nothing(suite: Suite) -> None:
    suite.profile(*DEPTHS)
    soak(suite, limit_s=300.0)


@pytest.mark.slow
@pytest.mark.engine
def test_twenty_rounds_of_the_cpu_engine_grow_nothing(suite: Suite) -> None:
    """About ten minutes on two cores."""
    changes = {
        r"^depths = .*$": f"depths = {list(DEPTHS)}",
        r"^oracle = .*$": "",
        r"^max_tokens = .*$": "max_tokens = 16",
        **tiny.floors("throughput", dict.fromkeys(DEPTHS, 0.01)),
        **tiny.floors("accept_length", dict.fromkeys(DEPTHS, 1.0)),
    }
    profile = tiny.changed(suite.folder / "soak.toml", changes)
    soak(suite, f"--perf-profile={profile}", limit_s=1800.0)

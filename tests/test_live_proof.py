"""The gate on the real engine: quiet sweeps raise no alarm, and with verifies a tenth slower every one does.

`EAGLE3_LIVE=DIR pytest tests/test_live_proof.py -m slow` (40 minutes on two quiet cores) keeps what it saw in DIR:
live.json, and the measurements of the sweep that became the reference.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kit import tiny
from tests.kit.suite import Suite

CYCLE = "cycle_is_no_slower_than_the_references[steps02]"
DRILL = "slow-verify=10%"
ROUNDS = 10
LIMIT_S = 900.0
CHANGES = {
    r"^depths = .*$": "depths = [2]",
    r"^max_tokens = .*$": "max_tokens = 48",
    r"^oracle = .*$": "",
    r"^passes = .*$": "passes = 2",
    r"^looks_until = .*$": "looks_until = 10\nalternate = true",
    **tiny.floors("throughput", {2: 0.8}),
    **tiny.floors("accept_length", {2: 1.6}),  # of 48 tokens, not of 128
}
"""What of cpu-tiny is other here: one depth, fewer tokens, and two servers that take turns, looked at until they
are told apart."""


def sweep(suite: Suite, name: str, *arguments: str) -> dict[str, Any]:
    """What one sweep said."""
    words = (f"--perf-profile={suite.folder}/live.toml", f"--perf-results={suite.folder}/{name}", "-k", "eagle3")
    run = suite.run(*words, *arguments, limit_s=LIMIT_S)
    assert run.left == []
    told = json.loads((suite.folder / name / "depth-2.json").read_text())
    return {
        "sweep": name,
        "status": run.status,
        "failed": sorted(run.failed()),
        "undecided": len(run.lines("UndecidedWarning: ")),
        "passes": 1 + max(sample["repeat"] for sample in told["samples"]),
        "seconds": round(run.seconds),
    }


def by_kind(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The sweeps by what was done to them."""
    return {
        word: [each for each in record["sweeps"] if each["sweep"].startswith(start)]
        for start, word in (("quiet", "as it is"), ("slow", "10 % slower"))
    }


def holds(record: Mapping[str, Any]) -> None:
    quiet, slow = by_kind(record).values()
    assert [each["failed"] for each in quiet] == [[]] * ROUNDS
    assert [each["failed"] for each in slow] == [[CYCLE]] * ROUNDS


@pytest.mark.slow
@pytest.mark.engine
def test_quiet_sweeps_raise_no_alarm_and_slower_ones_all_do(suite: Suite) -> None:
    keep = Path(os.environ.get("EAGLE3_LIVE", suite.folder / "kept"))
    keep.mkdir(parents=True, exist_ok=True)
    tiny.changed(suite.folder / "live.toml", CHANGES)
    accepted = sweep(suite, "reference", "--perf-accept=the reference of the proof")
    assert accepted["status"] == 0, accepted
    for file in (suite.folder / "reference").glob("depth-*.json"):
        (keep / file.name).write_bytes(file.read_bytes())
    record: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "host": {"machine": platform.machine(), "cores": os.cpu_count()},
        "sweeps": [],
    }
    for n in range(1, ROUNDS + 1):  # good controls between the bad ones
        record["sweeps"] += [sweep(suite, f"quiet-{n}"), sweep(suite, f"slow-{n}", f"--perf-drill={DRILL}")]
        (keep / "live.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    holds(record)

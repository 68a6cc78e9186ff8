"""The gate on the real engine: quiet sweeps raise no alarm, and with verifies a tenth slower every one does.

`EAGLE3_LIVE=DIR pytest tests/test_live_proof.py -m slow` (an hour on two quiet cores) keeps what it saw in DIR:
live.json, and the measurements of the sweep that became the reference.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fixtures import results
from fixtures.analysis.figures import costs
from fixtures.analysis.intervals import Figures, paired
from tests.kit import tiny
from tests.kit.suite import Suite
from tests.kit.warm import ROOT

CYCLE = "cycle_is_no_slower_than_the_references[steps02]"
DRILL = "slow-verify=10%"
ROUNDS = 10
LIMIT_S = 900.0
CHANGES = {
    r"^depths = .*$": "depths = [2]",
    r"^max_tokens = .*$": "max_tokens = 16",
    r"^oracle = .*$": "",
    r"^passes = .*$": "passes = 2",
    r"^looks_until = .*$": "looks_until = 20\nalternate = true",
    # Short turns, since a host that is shared changes its pace within each: docs/power.md. Seven cycles are few for an
    # accept length, and cut alike every night.
    r"^\[reference\]$": '[checks]\nsilenced = ["prompts-too-short"]\n\n[reference]',
    **tiny.floors("throughput", {2: 0.8}),
    **tiny.floors("accept_length", {2: 1.6}),  # of 16 tokens, not of 128
}
"""What of cpu-tiny is other here: one depth, few tokens, and two servers that take turns, looked at until they are
told apart."""
KEPT = Path(__file__).parent / "recordings/cpu-sglang-0.5.23/live"
"""What the run that docs/power.md tells of kept."""


def sweep(suite: Suite, name: str, *arguments: str) -> dict[str, Any]:
    """What one sweep said, and how much slower than the sweep "reference" it was."""
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
        "slower_percent": slower_percent(suite.folder / name, suite.folder / "reference"),
        "seconds": round(run.seconds),
    }


def slower_percent(tonight: Path, then: Path) -> float:
    """The estimate that the verdict rests on, of two folders of measurements."""
    return round(100 * math.expm1(paired(costs_in(tonight), costs_in(then)).centre), 2)


def costs_in(folder: Path) -> Figures:
    """What cycles cost, by prompt and pass."""
    measured = {each.depth: each for each in results.read(folder)}
    return costs(measured[2], results.read_alternated(folder)[2])


def by_kind(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The sweeps by what was done to them."""
    return {
        word: [each for each in record["sweeps"] if each["sweep"].startswith(start)]
        for start, word in (("quiet", "as it is"), ("slow", "10 % slower"))
    }


def holds(record: Mapping[str, Any]) -> None:
    quiet, slow = by_kind(record).values()
    assert len(quiet) == len(slow) > 0
    assert [each["failed"] for each in quiet] == [[]] * len(quiet)
    assert [each["sweep"] for each in slow if CYCLE not in each["failed"]] == []


def rows(record: Mapping[str, Any]) -> list[str]:
    """The lines of the table in docs/power.md."""
    return [row(what, sweeps) for what, sweeps in by_kind(record).items()]


def row(what: str, sweeps: Sequence[Mapping[str, Any]]) -> str:
    alarms = sum(CYCLE in each["failed"] for each in sweeps)
    others = sum(bool({*each["failed"]} - {CYCLE}) for each in sweeps)
    undecided = sum(each["undecided"] > 0 for each in sweeps)
    seen = sorted(each["slower_percent"] for each in sweeps)
    passes = ", ".join(f"{count} × {n}" for n, count in sorted(Counter(each["passes"] for each in sweeps).items()))
    cells = [what, len(sweeps), alarms, others, undecided, passes]
    cells += [f"{seen[0]:.1f} to {seen[-1]:.1f} %", f"{median(each['seconds'] for each in sweeps):.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


def test_the_record_that_is_kept_is_what_the_documentation_tells() -> None:
    record = json.loads((KEPT / "live.json").read_text(encoding="utf-8"))
    holds(record)
    told = (ROOT / "docs" / "power.md").read_text(encoding="utf-8")
    assert [line for line in rows(record) if line not in told] == []


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

"""Tensor parallel on the real engine: two schedulers that talk over gloo, each seen from inside."""

from __future__ import annotations

import json

import pytest

from tests.kit import tiny
from tests.kit.suite import Suite

CHANGES = {
    r"^depths = .*$": "depths = [2]",
    r"^engine = .*$": 'engine = "cpu"\ninstrument = true',
    r"^device = .*$": 'device = "cpu"\ntp-size = 2',
    r"^\[launch\.environment\]$": '[launch.environment]\nSGLANG_CPU_OMP_THREADS_BIND = "0|1"',
    r"^\[workload\]$": '[nccl]\nsettings = { NCCL_PROTO = "LL", NCCL_ALGO = "Ring" }\n[workload]',
    **tiny.floors("throughput", {2: 0.1}),
    **tiny.floors("accept_length", {2: 2.04}),
}
"""What of cpu-tiny is other with two ranks. Over gloo nothing is gained, so the floor of throughput says nothing."""


def ranks(suite: Suite, depth: int, kind: str) -> list[str]:
    """The files of this kind that the ranks wrote, by name."""
    return sorted(path.name for path in (suite.results / f"depth-{depth}.inside").glob(f"{kind}-*"))


@pytest.mark.slow
@pytest.mark.engine
def test_two_ranks_are_measured_and_both_seen_from_inside(suite: Suite) -> None:
    profile = tiny.changed(suite.folder / "two-ranks.toml", CHANGES)
    run = suite.run(f"--perf-profile={profile}", "-k", "eagle3 and steps02", "-rs", limit_s=900.0)
    assert (run.status, run.left) == (0, []), run.output  # counts are the oracle's, and NCCL's values on both ranks
    assert ranks(suite, 2, "phases") == ["phases-0-0.jsonl", "phases-0-1.jsonl"]
    assert ranks(suite, 2, "witness") == ["witness-0-0.json", "witness-0-1.json"]
    for name in ranks(suite, 2, "witness"):
        told = json.loads((suite.results / "depth-2.inside" / name).read_text())
        assert told["environment"] | {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"} == told["environment"]
        assert told["world"] == 2
    assert run.lines("EAGLE3_PROF 2 steps", "rank 0-")
    assert not run.lines("SKIPPED", "NCCL")

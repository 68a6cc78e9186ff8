"""Tensor parallel on the real engine: two schedulers that talk over gloo, each seen from inside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit import tiny
from tests.kit.suite import Suite
from tests.kit.warm import ROOT

PROMPTS = 12
"""Of cpu-tiny's; over gloo a token takes 36 ms."""
CHANGES = {
    r"^prompts = .*$": 'prompts = "prompts.jsonl"',
    r"^depths = .*$": "depths = [2]",
    r"^engine = .*$": 'engine = "cpu"\ninstrument = true',
    r"^device = .*$": 'device = "cpu"\ntp-size = 2',
    r"^\[launch\.environment\]$": '[launch.environment]\nSGLANG_CPU_OMP_THREADS_BIND = "0|1"',
    r"^\[workload\]$": '[nccl]\nsettings = { NCCL_PROTO = "LL", NCCL_ALGO = "Ring" }\nab = true\n[workload]',
    **tiny.floors("throughput", {2: 0.1}),
    **tiny.floors("accept_length", {2: 2.04}),
}
"""What of cpu-tiny is other with two ranks. Over gloo nothing is gained, so the floor of throughput says nothing."""
SETTINGS = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}


def ranks(suite: Suite, server: str, kind: str) -> list[str]:
    """The files of this kind that the ranks wrote, by name."""
    return sorted(path.name for path in (suite.results / f"{server}.inside").glob(f"{kind}-*"))


def witnesses(suite: Suite, server: str) -> list[dict[str, Any]]:
    """What the ranks say of themselves."""
    folder = suite.results / f"{server}.inside"
    return [json.loads((folder / name).read_text()) for name in ranks(suite, server, "witness")]


@pytest.mark.slow
@pytest.mark.engine
def test_two_ranks_are_measured_and_both_seen_from_inside(suite: Suite) -> None:
    all_prompts = (ROOT / "perf" / "prompts" / "tiny-eagle3.jsonl").read_text().splitlines(keepends=True)
    (suite.folder / "prompts.jsonl").write_text("".join(all_prompts[:PROMPTS]))
    profile = tiny.changed(suite.folder / "two-ranks.toml", CHANGES)
    run = suite.run(f"--perf-profile={profile}", "-k", "eagle3 and (steps02 or nccl)", "-rs", limit_s=900.0)
    # Counts are the oracle's, and NCCL's values on both ranks. What gloo doesn't read gains nothing, and costs nothing.
    assert (run.status, run.left) == (0, []), run.output
    assert ranks(suite, "depth-2", "phases") == ["phases-0-0.jsonl", "phases-0-1.jsonl"]
    assert [told["world"] for told in witnesses(suite, "depth-2")] == [2, 2]
    assert all(told["environment"] | SETTINGS == told["environment"] for told in witnesses(suite, "depth-2"))
    assert [told["world"] for told in witnesses(suite, "depth-2.untuned")] == [2, 2]
    assert not any(told["environment"].keys() & SETTINGS for told in witnesses(suite, "depth-2.untuned"))
    assert run.lines("EAGLE3_PROF 2 steps", "rank 0-")
    assert run.lines("NCCL settings at 2 steps: draft ", "verify ", " tok/s (NCCL_PROTO=LL, NCCL_ALGO=Ring).")
    assert run.lines("Verify counts and texts are the same on all ")
    assert not run.lines("SKIPPED", "NCCL")

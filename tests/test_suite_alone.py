"""Whole runs of the engine alone and of the draft alone: what boots, what is judged, and what is never kept."""

from __future__ import annotations

import pytest

from tests.kit.suite import PROMPTS, Suite

pytestmark = pytest.mark.faults

CEILING = "\n[floors.cycle_cost]\n2 = 8.0\n"
"""A cycle costs 1.5 plain tokens; other work on the machine must not fail a run."""


def test_the_engine_alone_judges_cycles_with_an_acceptance_that_is_set(suite: Suite) -> None:
    suite.profile(2, changed=lambda text: text + CEILING)
    suite.faults(d2={"words": {"3": "heaven"}})  # as a simulated acceptance makes it
    run = suite.run("-k", "eagle3", "-rs", "--perf-engine-only", "--benchmark-autosave")
    assert run.status == 0, run.output
    assert run.booted == [0, 2]
    # Launch twice, the ceiling; the oracle's accept length is simulated, which is 2.
    assert run.lines("3 passed")
    assert run.lines("SKIPPED", "--perf-engine-only simulates acceptance, so text, accept length and throughput mean")
    assert run.lines("Not a night: the engine alone, acceptance is simulated.")
    assert suite.measured(2)["simulated"] == 2.0
    assert suite.measured(2)["mark"] == "the engine alone, acceptance is simulated"
    assert suite.measured(2)["server"]["environment"]["SGLANG_SIMULATE_ACC_LEN"] == "2.0000"
    assert suite.measured(0)["simulated"] is None
    assert not (suite.results / "small.nights.json").exists()
    assert not [*suite.folder.glob("benchmarks/**/*.json")]
    assert not run.lines("Best: ")


def test_the_draft_alone_boots_no_plain_server_and_compares_texts_by_digest(suite: Suite) -> None:
    suite.profile(2, 3, passes=3, looks_until=10)
    suite.faults(d3={"words": {"3": "heaven"}})
    run = suite.run("-k", "eagle3", "-rfs", "--perf-draft-only")
    assert run.booted == [2, 3]
    assert run.failed() == {"text_is_the_baselines[steps03]"}
    assert run.lines("Greedy text at 3 steps is not the oracle's on 8 of 8 prompts, by digest")
    assert run.lines("SKIPPED", "--perf-draft-only boots no plain server and makes one pass")
    assert len(suite.measured(2)["samples"]) == PROMPTS
    assert run.lines("Not a night: the draft alone, beside no plain server.")
    assert not (suite.results / "small.nights.json").exists()

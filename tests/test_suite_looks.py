"""Whole runs without a reference: what is never accepted, and how long a night looks."""

from __future__ import annotations

import json

import pytest

from tests.kit.suite import PROMPTS, Suite
from tests.test_suite_reference import completions, passes, place, profile

pytestmark = pytest.mark.faults


def test_a_sweep_with_a_test_that_failed_is_not_accepted_and_fails(suite: Suite) -> None:
    profile(suite, 2)
    suite.faults(d2={"words": {"3": "heaven"}})
    run = suite.run("-k", "eagle3", "--perf-accept=why not")
    assert run.status == 1
    assert run.lines("ERROR: not accepted: ", "is left as it was", "text_is_the_baselines[steps02]")
    assert not place(suite).exists()


def test_a_sweep_that_judged_no_floor_is_not_accepted(suite: Suite) -> None:
    profile(suite, 2)
    run = suite.run("-k", "throughput", "--perf-accept=why not", "--benchmark-autosave")
    assert run.status == 1
    assert run.lines("ERROR: not accepted: ", "not judged at 2 steps: text, accept length")
    assert run.lines("Not saved, so that nothing is compared with it: every test passed, and what was asked")
    assert not [*suite.folder.glob("benchmarks/**/*.json")]
    assert not place(suite).exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--perf-accept= "], "the value is empty"),
        (["--perf-accept=x", "--perf-depths=2"], "leave --perf-depths out"),
    ],
)
def test_an_acceptance_that_can_not_be_boots_nothing(suite: Suite, options: list[str], told: str) -> None:
    profile(suite, 1, 2)
    run = suite.run("-k", "eagle3", *options)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines("--perf-accept: ", told, "Nothing was booted.")
    assert run.booted == []


def test_a_broken_reference_is_refused_before_anything_boots(suite: Suite) -> None:
    profile(suite, 2)
    place(suite).parent.mkdir()
    place(suite).write_text("{}")
    run = suite.run("-k", "eagle3")
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines("small.json: not a reference", "restore it from version control")
    assert run.booted == []


def test_a_floor_that_noise_leaves_open_asks_for_another_pass(suite: Suite) -> None:
    """Eight pairs give no interval for two looks; the plain server has no floor to look at."""
    profile(suite, 2)
    run = suite.run("-k", "throughput")
    assert run.status == 0, run.output
    assert run.lines("Not judged, since no test of it ran: text, accept length at 2 steps.")
    assert run.lines("holds as far as judged")
    assert passes(suite, 0) == [0] * PROMPTS
    assert completions(suite.measured(2)) == 1 + 2 * PROMPTS
    assert passes(suite, 2)[-1] == 1


def test_a_smoke_of_one_pass_stays_one(suite: Suite) -> None:
    profile(suite, 2, looks_until=1)
    suite.run("-k", "throughput")
    assert passes(suite, 2) == [0] * PROMPTS


@pytest.mark.slow
def test_the_plain_server_is_looked_at_before_each_depth_where_the_profile_asks(suite: Suite) -> None:
    suite.profile(
        1, 2, passes=2, changed=lambda text: text.replace("[checks]", "[checks]\nbaseline_before_each = true")
    )
    # A warm-up and 16 completions, and as many before the first depth: slower from the next one on.
    suite.faults(d0={"slows": [35, 6.0]})
    run = suite.run("-k", "throughput")
    assert run.status == 0, run.output
    assert run.booted == [0, 1, 2]
    # A dozen completions at least, of eight prompts.
    before = [json.loads((suite.results / f"depth-{depth}.before.json").read_text()) for depth in (1, 2)]
    assert [completions(m) for m in before] == [1 + 2 * PROMPTS] * 2
    assert run.lines("depth 2: baseline-drift: Measured again, the plain server's tokens took +")
    assert not run.lines("depth 1: baseline-drift")
    assert "--sleep-on-idle" in suite.measured(0)["server"]["arguments"]
    assert run.left == []


def test_the_plain_server_is_measured_again_at_the_end_and_drift_makes_falling_short_undecided(suite: Suite) -> None:
    profile(suite, 2, passes=2)
    suite.faults(d2={"cycle_factor": 16})
    going = suite.start("-k", "throughput", "--perf-baseline-twice")
    going.until("completion", depth=2)
    suite.faults(d0={"cycle_factor": 8})
    run = going.wait()
    assert run.booted == [0, 2, 0]
    assert (suite.results / "depth-0.again.json").exists()
    assert suite.finished() == [0, 2]
    assert run.status == 0, run.output
    assert run.lines("baseline-drift: Measured again, the plain server's tokens took +")
    assert run.lines("Undecided all the same, since a check did not pass.")
    assert run.left == []

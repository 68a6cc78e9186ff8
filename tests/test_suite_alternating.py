"""Whole runs in which the plain server stays up, and completions take turns."""

from __future__ import annotations

import pytest

from tests.kit.suite import PROMPTS, Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> tuple[Suite, Run]:
    with suite_in(tmp_path_factory.mktemp("alternating"), warm) as suite:
        suite.profile(1, 2, passes=2, looks_until=2, alternate=True)
        return suite, suite.run("-k", "eagle3", "--perf-accept=first night")


def test_the_plain_server_stays_up_beside_each_depths_and_is_booted_once(swept: tuple[Suite, Run]) -> None:
    run = swept[1]
    assert run.status == 0, run.output
    seen = [(line["event"], line["depth"]) for line in run.record if line["event"] in ("booting", "stopped")]
    assert seen == [
        ("booting", 0),
        ("booting", 1),
        ("stopped", 1),
        ("booting", 2),
        ("stopped", 2),
        ("stopped", 0),
    ]
    assert run.left == []


def test_completions_take_turns_a_b_b_a_and_the_other_way_round_in_the_next_pass(swept: tuple[Suite, Run]) -> None:
    record = swept[1].record
    booted = next(n for n, line in enumerate(record) if (line["event"], line["depth"]) == ("ready", 2))
    turns = [line["depth"] for line in record[booted:] if line["event"] == "completion"]
    warm_up, measured = turns[:2], turns[2:]
    assert warm_up == [2, 0]
    assert measured[: 2 * PROMPTS] == [2, 0, 0, 2] * (PROMPTS // 2)
    assert measured[2 * PROMPTS :] == [0, 2, 2, 0] * (PROMPTS // 2)


def test_a_depths_partners_lie_beside_it_and_are_no_measurement_of_their_own(swept: tuple[Suite, Run]) -> None:
    suite = swept[0]
    assert suite.finished() == [0, 1, 2]
    assert (suite.results / "depth-2.baseline.json").exists()
    assert "--sleep-on-idle" in suite.measured(2)["server"]["arguments"]


def test_the_reference_takes_costs_of_neighbours(swept: tuple[Suite, Run]) -> None:
    assert swept[1].lines("Accepted as ")


def test_a_plain_server_that_died_is_told_and_booted_again_for_the_next_depth(suite: Suite) -> None:
    suite.profile(1, 2, alternate=True)
    # Of the plain server's completions one is its warm-up, eight are its own and one is the next warm-up.
    suite.faults(d0={"streaming": [["kill_self"]], "at": [PROMPTS + 4, 2]})
    run = suite.run("-k", "eagle3")
    assert run.booted == [0, 1, 0, 2]
    assert run.lines("1 step gave no measurement. The server died: killed by SIGKILL")
    assert suite.finished() == [0, 2]
    assert run.left == []


def test_a_plain_server_whose_leader_outlives_its_scheduler_takes_one_depth_with_it(suite: Suite) -> None:
    suite.profile(1, 2, alternate=True)
    suite.faults(d0={"streaming": [["kill_scheduler"], ["wait_for", "never"]], "at": [PROMPTS + 4, 2]})
    run = suite.run("-k", "eagle3")
    assert run.booted == [0, 1, 0, 2]
    assert run.lines("1 step gave no measurement. The server died: its process sglang::schedul")
    assert suite.finished() == [0, 2]
    assert run.left == []


def test_an_interrupted_sweep_that_alternated_is_gone_on_with(suite: Suite) -> None:
    suite.profile(1, 2, alternate=True)
    suite.faults(d2={"booting": [["kill_self"]]})
    assert suite.run("-k", "eagle3").status == 1
    suite.faults()
    log = (suite.results / "depth-0.log").read_bytes()
    run = suite.run("-k", "eagle3", f"--perf-resume={suite.results}")
    assert (suite.results / "depth-0.log").read_bytes() == log
    assert (suite.results / "depth-0.boot-2.log").exists()
    assert run.status == 0, run.output
    assert run.booted == [0, 2]
    assert run.left == []

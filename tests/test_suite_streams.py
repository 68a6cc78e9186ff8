"""Whole runs with several streams at once, with limits for the first token, and at a temperature above 0."""

from __future__ import annotations

import json

import pytest

from tests.kit.suite import PROMPTS, Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

LEVELS = (1, 3)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> tuple[Suite, Run]:
    """Two servers that take turns with one stream; several go to the measured one alone."""
    with suite_in(tmp_path_factory.mktemp("streams"), warm) as suite:
        suite.profile(2, alternate=True, changed=with_streams)
        return suite, suite.run("-k", "eagle3", "-v", "--benchmark-autosave")


def with_streams(text: str) -> str:
    asked = text.replace("[checks]", f"concurrency = {list(LEVELS)}\n[checks]")
    return f"{asked}\n[floors.ttft]\n2 = 50.0\n"


def test_streams_follow_the_single_one_and_fail_nothing(swept: tuple[Suite, Run]) -> None:
    run = swept[1]
    assert run.status == 0, run.output
    completions = [line["number"] for line in run.record if (line["event"], line["depth"]) == ("completion", 2)]
    assert len(completions) == 1 + PROMPTS + PROMPTS, "a warm-up, a pass alone, and a pass of three at a time"
    turns = [line["number"] for line in run.record if (line["event"], line["depth"]) == ("completion", 0)]
    assert len(turns) == 2 * PROMPTS + 1 + PROMPTS + 1, "its own, then by turns with one stream of the other"
    assert run.lines("several_streams_are_served[steps02] PASSED")
    assert run.lines("time_to_first_token_holds_its_limit[steps02] PASSED")
    assert run.left == []


def test_the_measurement_has_every_stream_with_its_own_verifies(swept: tuple[Suite, Run]) -> None:
    suite = swept[0]
    (level,) = suite.measured(2)["levels"]
    assert level["streams_at_once"] == 3
    assert {s["lane"] for s in level["streams"]} == {0, 1, 2}
    assert {s["verifies"] for s in level["streams"]} == {16}, "as the oracle has them for 32 tokens at two steps"
    assert all(len(s["gaps_us"].split()) == 1 + 16 for s in level["streams"])
    (plain,) = suite.measured(0)["levels"]
    alone = {s["prompt"]: s["text_sha256"] for s in suite.measured(0)["samples"]}
    assert {s["prompt"]: s["text_sha256"] for s in plain["streams"]} == alone


def test_the_gated_figures_have_no_part_of_them(swept: tuple[Suite, Run]) -> None:
    assert [s["repeat"] for s in swept[0].measured(2)["samples"]] == [0] * PROMPTS


def test_the_summary_has_a_line_per_depth_and_number_of_streams(swept: tuple[Suite, Run]) -> None:
    run = swept[1]
    (header,) = run.lines("tok/s each", "together", "between tokens")
    at = run.output.splitlines().index(header)
    rows = [line.split()[:2] for line in run.output.splitlines()[at + 2 : at + 6]]
    assert rows == [["0", "1"], ["0", "3"], ["2", "1"], ["2", "3"]]


def test_the_stored_benchmark_carries_the_levels(swept: tuple[Suite, Run]) -> None:
    (file,) = (swept[0].folder / "benchmarks").rglob("*.json")
    info = [b["extra_info"] for b in json.loads(file.read_text())["benchmarks"]]
    assert [[level["streams_at_once"] for level in each["levels"]] for each in info] == [[1, 3], [1, 3]]


def test_more_streams_than_the_server_admits_are_refused_before_anything_boots(suite: Suite) -> None:
    suite.profile(2, changed=lambda text: text.replace("[checks]", "concurrency = [1, 8]\n[checks]"))
    run = suite.run("-k", "eagle3")
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.booted == []
    assert run.lines(
        "small.toml: workload.concurrency = [1, 8]: launch.flags.max-running-requests = 4 covers 4 streams"
    )


def test_a_server_that_dies_under_several_streams_keeps_what_one_stream_gave_and_fails(suite: Suite) -> None:
    suite.profile(2, changed=with_streams)
    suite.faults(d2={"streaming": [["kill_self"]], "at": [PROMPTS + 3, 2]})
    run = suite.run("-k", "eagle3")
    assert run.failed() == {"several_streams_are_served[steps02]"}
    assert len(suite.measured(2)["samples"]) == PROMPTS
    assert run.lines("3 streams at once: 0 good completions of 1")


def test_above_temperature_0_neither_texts_nor_counts_are_held_to_be_equal(suite: Suite) -> None:
    suite.profile(
        2,
        passes=2,
        looks_until=2,
        changed=lambda text: text.replace('oracle = "./oracle.json"', "temperature = 0.7"),
    )
    suite.faults(d2={"words": {"3": "heaven"}})
    run = suite.run("-k", "eagle3", "-v", "-rs")
    assert run.status == 0, run.output
    assert run.lines("SKIPPED", "above temperature 0 no two texts need be equal")
    assert run.lines("accept_length_holds_its_floor[steps02] PASSED")
    assert suite.measured(2)["identity"]["workload"]["temperature"] == 0.7

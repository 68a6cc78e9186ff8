"""Whole runs with nccl.ab: the fastest depth is measured once more without the NCCL settings, last of all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.kit.suite import PROMPTS, Run, Suite, suite_in
from tests.kit.warm import Warm
from tests.test_suite_reference import completions

pytestmark = pytest.mark.faults

SETTINGS = '\n[nccl]\nab = true\nsettings = { NCCL_PROTO = "LL", NCCL_ALGO = "Ring" }\n'
TEST = "nccl_settings_cost_no_time"


def profile(suite: Suite, *depths: int) -> None:
    suite.profile(*depths, passes=2, changed=lambda text: text + SETTINGS)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[tuple[Suite, Run]]:
    """A night on a host that has one of the settings in its own environment; without them a cycle takes twice as long.

    At 2 steps verifies commit 2 tokens on average and at 1 step 1.5, so that 2 steps are the fastest.
    """
    with suite_in(tmp_path_factory.mktemp("nccl"), warm) as suite:
        profile(suite, 1, 2)
        suite.faults(**{"d2.untuned": {"cycle_factor": 2.0}})
        yield suite, suite.run("-k", "eagle3", "-rs", NCCL_PROTO="Simple")


def test_the_fastest_depth_is_booted_once_more_without_the_settings_even_inherited_ones(
    night: tuple[Suite, Run],
) -> None:
    run = night[1]
    assert (run.status, run.left) == (0, []), run.output
    assert run.booted == [0, 1, 2, 2]
    tuned = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert [line["nccl"] for line in run.record if line["event"] == "booting"] == [tuned, tuned, tuned, {}]


def test_the_summary_tells_the_gain_by_time_and_counts(night: tuple[Suite, Run]) -> None:
    run = night[1]
    assert run.lines("NCCL settings at 2 steps: ", " tok/s (NCCL_PROTO=LL, NCCL_ALGO=Ring).")
    (line,) = run.lines("A cycle takes ", " ms without them and ")
    assert completions(night[0].measured(2)) == 1 + 2 * PROMPTS
    assert PROMPTS <= int(re.findall(r"from (\d+) samples", line)[0]) <= 2 * PROMPTS
    assert run.lines("With them 2 steps gained ", "accept length unchanged, to the count.")
    assert run.lines("Verify counts and texts are the same on all 8 prompts.")
    assert run.lines("Measured without them: depth-2.untuned.json, depth-2.untuned.log.")


def test_the_measurement_lies_beside_the_others_and_is_no_nights(night: tuple[Suite, Run]) -> None:
    suite = night[0]
    told = json.loads((suite.results / "depth-2.untuned.json").read_text())
    assert told["mark"] == "without the NCCL settings"
    assert suite.finished() == [0, 1, 2]
    assert suite.measured(2)["mark"] == ""
    own = {name: told["server"]["environment"].pop(name, None) for name in ("NCCL_PROTO", "NCCL_ALGO")}
    tuned = suite.measured(2)["server"]["environment"]
    assert own == {"NCCL_PROTO": None, "NCCL_ALGO": None}
    assert told["server"]["environment"] | {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"} == tuned


def test_what_is_deselected_is_not_booted_and_what_was_measured_is_taken_over(night: tuple[Suite, Run]) -> None:
    suite = night[0]
    run = suite.run("-k", "throughput", f"--perf-resume={suite.results}")
    assert (run.status, run.booted) == (0, []), run.output
    run = suite.run("-k", TEST, f"--perf-resume={suite.results}")
    assert (run.status, run.booted) == (0, []), run.output
    assert run.lines("1 passed")
    assert run.lines("NCCL settings at 2 steps: ")


def test_a_second_boot_that_fails_costs_its_test_alone_and_is_made_up_for(night: tuple[Suite, Run]) -> None:
    suite = night[0]
    (suite.results / "depth-2.untuned.json").unlink()
    suite.faults(**{"d2.untuned": {"booting": [["exit", 3]]}})
    run = suite.run("-k", f"throughput or {TEST}", f"--perf-resume={suite.results}")
    assert (run.booted, run.failed()) == ([2], {TEST})
    assert run.lines("2 steps, untuned gave no measurement.")
    assert run.lines("fails: nccl")
    # Without the settings a cycle is half as long now.
    suite.faults(**{"d2.untuned": {"cycle_factor": 0.5}})
    run = suite.run("-k", f"throughput or {TEST}", f"--perf-resume={suite.results}")
    assert (run.booted, run.failed()) == ([2], {TEST})
    assert run.lines("The NCCL settings cost time at 2 steps: a cycle takes ")
    assert suite.finished() == [0, 1, 2]

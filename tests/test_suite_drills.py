"""Whole runs with a drill: the fault is there and seen, and nothing of it stays where nights are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kit.suite import Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

IDS = "eagle_aux_hidden_state_layer_ids"
WEIGHTS = b"\2\0\0\0\0\0\0\0{}"
"""A safetensors file without a tensor."""


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[tuple[Suite, Run]]:
    """A drill with wrong layers, on servers that take turns."""
    with suite_in(tmp_path_factory.mktemp("layers"), warm) as suite:
        suite.profile(1, 2, alternate=True)
        (suite.folder / "draft" / "model.safetensors").write_bytes(WEIGHTS)
        yield suite, suite.run("-k", "eagle3", "--perf-drill=wrong-layers=0,1,2", "--benchmark-autosave")


def test_wrong_layers_lose_accept_length_and_not_the_text(layers: tuple[Suite, Run]) -> None:
    run = layers[1]
    assert run.status == 1
    assert "verify_counts_equal_the_oracles[steps02]" in run.failed()
    assert not [name for name in run.failed() if name.startswith(("text", "server_is"))]


def test_wrong_layers_are_named_as_such_in_the_failure(layers: tuple[Suite, Run]) -> None:
    run = layers[1]
    assert {name for name in run.failed() if name.startswith("first_guess")} == {
        "first_guess_is_accepted_as_expected[steps01]",
        "first_guess_is_accepted_as_expected[steps02]",
    }
    # At 2 steps the stand-in accepts two drafts in every second verify, and with wrong layers one in every fourth.
    said = "Wrong-layer signature at 2 steps: the first guess is accepted in 0.231 of the verifies (interval 0.231 to"
    assert run.lines(said, "not in 0.500, as the oracle has it, while the text is the plain server's")


def test_the_draft_of_the_drill_lies_among_the_results_and_the_users_is_as_it_was(layers: tuple[Suite, Run]) -> None:
    suite = layers[0]
    drilled = suite.results / "draft-layers-0-1-2"
    assert sorted(path.name for path in (suite.folder / "draft").iterdir()) == ["config.json", "model.safetensors"]
    stated = [
        json.loads((d / "config.json").read_text())["eagle_config"][IDS] for d in (suite.folder / "draft", drilled)
    ]
    assert stated == [[1, 2, 4], [0, 1, 2]]
    assert (drilled / "model.safetensors").read_bytes() == WEIGHTS
    assert str(drilled) in suite.measured(2)["server"]["arguments"]


def test_every_result_says_that_it_is_a_drill(layers: tuple[Suite, Run]) -> None:
    suite, run = layers
    assert run.lines("Not a night: a drill, wrong-layers=0,1,2. No later night is compared with it")
    marks = [json.loads(path.read_text())["mark"] for path in suite.results.glob("depth-*.json")]
    assert marks == ["a drill, wrong-layers=0,1,2"] * 5


def test_a_drill_is_neither_remembered_nor_stored(layers: tuple[Suite, Run]) -> None:
    suite, run = layers
    assert not list(suite.results.glob("*.nights.json"))
    assert not list((suite.folder / "benchmarks").rglob("*.json"))
    assert run.lines("Not saved, so that nothing is compared with it: a drill, wrong-layers=0,1,2")


def test_a_drill_is_gone_on_with_as_the_same_drill_only(layers: tuple[Suite, Run]) -> None:
    suite = layers[0]
    (suite.results / "depth-2.json").unlink()
    for other in ([], ["--perf-drill=wrong-layers=0,1,4"]):
        run = suite.run("-k", "eagle3", f"--perf-resume={suite.results}", *other)
        assert run.status == pytest.ExitCode.USAGE_ERROR, run.output
        assert run.lines("depth 0: mark: 'a drill, wrong-layers=0,1,2' → ")
    run = suite.run("-k", "steps02 and oracle", f"--perf-resume={suite.results}", "--perf-drill=wrong-layers=0,1,2")
    assert run.booted == [0, 2]
    assert run.failed() == {"verify_counts_equal_the_oracles[steps02]"}


def test_another_depth_than_asked_fails_the_launch_test(suite: Suite) -> None:
    suite.profile(2)
    run = suite.run("-k", "eagle3", "--perf-drill=wrong-depth=1")
    assert run.booted == [0, 1]
    assert "server_is_what_was_asked[steps02]" in run.failed()
    assert run.lines("depth: speculative_num_steps = 2 was asked for at 2 steps, and the server reports", "= 1")
    assert "Wrong-layer" not in run.output


def test_a_slower_verify_is_slower_at_every_depth_and_its_json_is_marked(suite: Suite) -> None:
    suite.profile(2, changed=lambda text: text.replace("2 = 0.2", "2 = 0.9"))
    written, junit = suite.folder / "run.json", suite.folder / "junit.xml"
    figures = (f"--benchmark-json={written}", f"--junit-xml={junit}")
    run = suite.run("-k", "throughput", "--perf-drill=slow-verify=300%", *figures)
    assert run.failed() == {"throughput_holds_its_floor[steps02]"}
    marks = {b["extra_info"]["mark"] for b in json.loads(written.read_text())["benchmarks"]}
    assert marks == {"a drill, slow-verify=300%"}
    assert not run.lines("No alarm")
    assert '<property name="mark" value="a drill, slow-verify=300%" />' in junit.read_text()


def test_a_fault_that_nothing_sees_is_no_quiet_success(suite: Suite) -> None:
    suite.profile(2)
    run = suite.run("-k", "launch", "--perf-drill=slow-verify=10%")
    assert run.status == 0
    assert run.lines(
        "No alarm: no test failed, so these floors, this reference and so few samples don't see such a fault"
    )

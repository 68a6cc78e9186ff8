"""The whole suite on servers that do one thing wrong each: the right test fails, and only that one."""

from __future__ import annotations

import pytest

from tests.kit.suite import Run, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

WRONG = {
    "d1": {"reported": {"speculative_num_steps": 2, "speculative_num_draft_tokens": 3}},
    "d2": {"miscounted": 1},
    "d3": {"words": {"20": "heaven"}},
    "d5": {"committed": [2]},
    "d10": {"cycle_factor": 20},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Run:
    with suite_in(tmp_path_factory.mktemp("judged"), warm) as suite:
        # Far from what depth 10 shows when it is well (3.6) and when it is slow (0.2): other work shares the machine.
        # A cycle costs 1.5 plain tokens.
        suite.profile(changed=lambda text: text.replace("10 = 0.2", "10 = 0.9") + "\n[floors.cycle_cost]\n10 = 8.0\n")
        suite.faults(**WRONG)
        return suite.run("-k", "eagle3")


def failed_at(run: Run, depth: int) -> set[str]:
    mark = f"[steps{depth:02}]"
    return {name.removesuffix(mark) for name in run.failed() if name.endswith(mark)}


def test_failures_are_an_exit_status_of_one_and_take_no_depth_with_them(run: Run) -> None:
    assert run.status == 1
    assert run.booted == [0, 1, 2, 3, 5, 10]
    assert run.left == []


def test_a_server_that_runs_another_depth_than_asked_fails_the_launch_test_alone(run: Run) -> None:
    assert failed_at(run, 1) == {"server_is_what_was_asked"}
    assert run.lines("depth: speculative_num_steps = 1 was asked for at 1 step, and the server reports", "= 2")


def test_a_slow_cycle_fails_its_ceiling_and_throughput_and_not_accept_length(run: Run) -> None:
    assert failed_at(run, 10) == {"throughput_holds_its_floor", "cycle_costs_no_more_than_its_ceiling"}
    assert run.lines("A cycle at 10 steps exceeds its ceiling of 8.000 plain tokens: ")
    assert run.lines("10 steps: a cycle costs ", "plain tokens, ceiling 8.000.")
    assert run.lines("Throughput at 10 steps falls short of its floor of 0.900 × baseline")


def test_a_text_that_differs_fails_the_output_test_alone(run: Run) -> None:
    assert failed_at(run, 3) == {"text_is_the_baselines"}
    assert run.lines("Greedy text at 3 steps differs from the plain server's on 8 of 8 prompts", "heaven")


def test_counts_that_are_not_the_oracles_fail_the_oracle_test_alone(run: Run) -> None:
    assert failed_at(run, 2) == {"verify_counts_equal_the_oracles"}
    assert run.lines("Verify counts at 2 steps equal the oracle's on 0 of 8 prompts")


def test_a_deeper_draft_that_is_accepted_less_fails_the_depth_curve_and_the_oracle(run: Run) -> None:
    assert failed_at(run, 5) == {"accept_length_does_not_fall_with_depth", "verify_counts_equal_the_oracles"}
    assert run.lines("Accept length falls from 3 steps to 5 steps: 2.667 to 2.000 tokens per verify")


def test_the_table_says_which_tests_failed_at_which_depth(run: Run) -> None:
    told = {words[0]: line for line in run.lines("fails: ") if (words := line.split())}
    assert set(told) == {"1", "2", "3", "5", "10"}
    assert told["10"].endswith("fails: cycle, throughput")

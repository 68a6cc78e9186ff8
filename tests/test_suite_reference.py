"""Whole runs against an accepted reference: what is written when, what fails, and how long a night looks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.suite import PROMPTS, Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

WIDE = "\n[reference]\ndelta = 0.9\nbeta = 0.05\nbelieved_after_boots = {boots}\n"
"""Other work on the machine must not fail a night; faults make cycles many times slower."""
SLOW = {"cycle_factor": 8}


def profile(suite: Suite, *depths: int, boots: int = 1, looks_until: int = 2, **how: Any) -> Path:
    wide = WIDE.format(boots=boots)
    return suite.profile(*depths, looks_until=looks_until, changed=lambda text: text + wide, **how)


def place(suite: Suite) -> Path:
    return suite.folder / "references" / "small.json"


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[tuple[Suite, Run]]:
    with suite_in(tmp_path_factory.mktemp("accepted"), warm) as suite:
        profile(suite, 1, 2)
        yield suite, suite.run("-k", "eagle3", "--perf-accept=first night")


@pytest.fixture
def known(accepted: tuple[Suite, Run]) -> Iterator[Suite]:
    """The suite that has a reference, well again and without memory of other nights."""
    suite = accepted[0]
    suite.faults()
    (suite.results / "small.nights.json").unlink(missing_ok=True)
    before = place(suite).read_bytes()
    yield suite
    assert place(suite).read_bytes() == before, "only an acceptance writes it"


def test_a_sweep_in_which_every_floor_held_is_accepted_with_who_when_and_why(accepted: tuple[Suite, Run]) -> None:
    suite, run = accepted
    assert run.status == 0, run.output
    assert run.lines("No reference: ", "nothing accepted to compare with")
    assert run.lines("Accepted as ", "small.json. Commit it.")
    told = json.loads(place(suite).read_text())
    assert told["accepted"]["why"] == "first night"
    assert sorted(told["depths"]) == ["0", "1", "2"]
    assert told["depths"]["2"]["verifies"]["p0"] == [16]


def test_what_is_accepted_takes_all_passes_that_a_night_may_take(accepted: tuple[Suite, Run]) -> None:
    told = json.loads(place(accepted[0]).read_text())
    measured = accepted[0].measured(2)
    assert completions(measured) == 1 + 2 * PROMPTS
    cycles = told["depths"]["2"]["boots"][0]["cycles"]
    assert sum(map(len, cycles.values())) == len(measured["samples"])


@pytest.mark.parametrize(("words", "offers"), [({}, 1), ({"3": "heaven"}, 0)], ids=["sound", "another text"])
def test_what_became_faster_is_offered_only_where_no_test_failed(
    known: Suite, words: Mapping[str, str], offers: int
) -> None:
    profile(known, 1, 2)
    known.faults(d2={"cycle_factor": 0.1, "words": words})
    run = known.run("-k", "reference or output")
    assert run.failed() == ({"text_is_the_baselines[steps02]"} if words else set()), run.output
    assert len(run.lines("Better than the reference: ", "at 2 steps", "--perf-accept")) == offers


def test_a_slow_depth_fails_alone_and_says_what_fell_from_what_since_when(known: Suite) -> None:
    profile(known, 1, 2)
    known.faults(d2=SLOW)
    run = known.run("-k", "eagle3 and reference")
    assert run.failed() == {"cycle_is_no_slower_than_the_references[steps02]"}
    assert run.lines("A cycle at 2 steps takes longer than in the reference", " ms then, ", " ms tonight", "interval")
    assert run.lines("The reference was accepted by ", "first night", "It isn't known to have held here before.")
    assert run.lines("2 steps lost ", "explains")
    assert run.lines("2 steps: cycle +", "falls short; accept length +0.0 %: holds")
    assert run.lines("  plain server: token ", "holds")


def test_counts_that_moved_fail_by_the_count(known: Suite) -> None:
    profile(known, 2)
    known.faults(d2={"miscounted": 1})
    run = known.run("-k", "reference and accept_length", "--perf-depths=2")
    assert run.failed() == {"accept_length_is_the_references[steps02]"}
    assert run.lines("Verify counts at 2 steps are not the reference's on 8 prompts", "p0: ")


def test_floors_by_rule_are_shares_of_the_reference(known: Suite) -> None:
    rule = '\n[floors.cycle_cost]\n2 = "300 % of reference"\n'
    by_rule = {"2 = 1.5": '2 = "97 % of reference"', "2 = 0.2": '2 = "50 % of reference"'}
    file = profile(known, 2)
    text = file.read_text() + rule
    for number, share in by_rule.items():
        text = text.replace(number, share)
    file.write_text(text)
    known.faults(d2={"miscounted": 1})
    run = known.run("-k", "floor or ceiling", "--perf-depths=2")
    # 32 tokens in 16 verifies then, in 17 tonight.
    assert run.failed() == {"accept_length_holds_its_floor[steps02]"}
    assert run.lines(
        "Accept length at 2 steps falls short of its floor of 1.940 tokens", "It was to be 97 % of reference."
    )
    assert run.lines("2 steps: a cycle costs ", " plain tokens, ceiling ")
    assert run.lines("1 failed, 2 passed")


def test_a_reference_of_another_workload_is_not_compared_and_the_difference_named(known: Suite) -> None:
    profile(known, 2, tokens=17)
    file = known.folder / "small.toml"
    file.write_text(file.read_text().replace('oracle = "./oracle.json"\n', ""))
    run = known.run("-k", "reference", "-rs")
    assert run.lines("is not compared with tonight", "workload.max_tokens: 33 → 17")
    assert run.status == 0, run.output


def test_depths_left_out_are_said_to_be_not_judged_and_gone_ones_fail(known: Suite) -> None:
    profile(known, 1, 2)
    run = known.run("-k", "reference and gone", "--perf-depths=2")
    assert run.status == 0, run.output
    assert run.lines("Not judged, since this session leaves it out: 1 step.")
    profile(known, 2)
    run = known.run("-k", "reference and gone")
    assert run.failed() == {"no_depth_of_the_reference_is_gone"}
    assert run.lines("1 step was to be measured and wasn't")


def completions(told: Mapping[str, Any]) -> int:
    """What a server answered, one warm-up a boot included. A first pass may count as warming up as well."""
    return int(told["discarded"]) + len(told["samples"])


def passes(suite: Suite, depth: int) -> list[int]:
    """By sample, which pass it is of."""
    return [sample["repeat"] for sample in suite.measured(depth)["samples"]]


def test_slower_than_the_reference_is_believed_after_another_boot_only(known: Suite) -> None:
    profile(known, 1, 2, boots=2)
    known.faults(d2=SLOW)
    run = known.run("-k", "reference and cycle and steps02")
    assert run.booted == [0, 2, 2]
    assert known.measured(2)["boots"] == [0, 2]
    seen = passes(known, 2)
    assert seen == sorted(seen)
    assert {1, 3} <= {*seen} <= {0, 1, 2, 3}
    assert completions(known.measured(2)) == 2 * (1 + 2 * PROMPTS)
    assert run.failed() == {"cycle_is_no_slower_than_the_references[steps02]"}
    assert run.lines(f"from {len(seen)} samples of 8 prompts in 2 boots")
    assert (known.results / "depth-2.boot-2.log").exists()
    assert run.left == []


def test_an_interruption_before_another_boot_makes_the_first_one_not_final(known: Suite) -> None:
    profile(known, 1, 2, boots=2)
    known.faults(d2=SLOW)
    going = known.start("-k", "reference and cycle and steps02")
    going.until("completion", depth=2)
    known.faults(d2={**SLOW, "booting": [["wait_for", "never"]]})
    going.until("waiting")
    going.signal(signal.SIGINT)
    assert going.wait().booted == [0, 2, 2]
    assert known.measured(2)["boots"] == [0]
    known.faults(d2=SLOW)
    run = known.run("-k", "reference and cycle and steps02", f"--perf-resume={known.results}")
    assert run.booted == [2]
    assert known.measured(2)["boots"] == [0, 2]
    assert run.failed() == {"cycle_is_no_slower_than_the_references[steps02]"}
    assert run.lines("samples of 8 prompts in 2 boots")


def test_a_later_boot_that_fails_leaves_the_earlier_ones_figures(known: Suite) -> None:
    profile(known, 1, 2, boots=2, boot_limit_s=20.0)
    known.faults(d2=SLOW)
    going = known.start("-k", "reference and cycle and steps02")
    going.until("completion", depth=2)
    known.faults(d2={**SLOW, "booting": [["kill_self"]]})
    run = going.wait()
    assert run.booted == [0, 2, 2]
    assert run.lines("2 steps: booted again, which came to nothing: ")
    assert known.measured(2)["boots"] == [0]
    assert run.failed() == {"cycle_is_no_slower_than_the_references[steps02]"}

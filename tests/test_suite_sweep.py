"""The whole suite on a stand-in for SGLang: what boots, in which order, and what a sweep leaves for its readers."""

from __future__ import annotations

import hashlib
import stat
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit import standin_model as model
from tests.kit.suite import DEPTHS, PROMPTS, Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

SECRETS = {"HF_TOKEN": "hf_inherited0123456789", "SERVICE_TOKEN": "tok_of_the_profile_0123"}
ALL = (0, *DEPTHS)


@dataclass(frozen=True)
class Swept:
    """A whole sweep that went well, though the server leaks what it can."""

    suite: Suite
    run: Run
    junit: Path


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Swept:
    folder = tmp_path_factory.mktemp("swept")
    with suite_in(folder, warm) as suite:
        suite.profile(environment={"SERVICE_TOKEN": SECRETS["SERVICE_TOKEN"]})
        suite.faults(**{f"d{depth}": {"ready": [["leak", *SECRETS]]} for depth in ALL})
        junit = folder / "junit.xml"
        options = ("-k", "eagle3", "-v", f"--junit-xml={junit}", "--benchmark-autosave")
        run = suite.run(*options, HF_TOKEN=SECRETS["HF_TOKEN"])
    return Swept(suite, run, junit)


# --- what boots ---


def test_a_sweep_boots_the_plain_server_and_one_server_per_depth(swept: Swept) -> None:
    assert swept.run.status == 0, swept.run.output
    assert swept.run.booted == [0, 1, 2, 3, 5, 10]


def test_each_server_has_stopped_before_the_next_one_boots(swept: Swept) -> None:
    seen = [(line["event"], line["depth"]) for line in swept.run.record if line["event"] in ("booting", "stopped")]
    assert seen == [(event, depth) for depth in ALL for event in ("booting", "stopped")]


def test_each_measurement_is_on_disk_before_the_next_server_boots(swept: Swept) -> None:
    there = {line["depth"]: line["results"] for line in swept.run.record if line["event"] == "booting"}
    for place, depth in enumerate(ALL):
        assert [name for name in there[depth] if name.endswith(".json")] == sorted(
            f"depth-{earlier}.json" for earlier in ALL[:place]
        )


def test_a_test_never_asks_a_server_so_every_completion_is_a_warm_up_or_a_sample(swept: Swept) -> None:
    asked = [line["depth"] for line in swept.run.record if line["event"] == "completion"]
    assert {depth: asked.count(depth) for depth in ALL} == dict.fromkeys(ALL, PROMPTS + 1)


def test_a_sweep_leaves_no_process_port_lock_or_record(swept: Swept) -> None:
    assert swept.run.left == []


def test_collecting_only_boots_nothing_and_makes_no_folder(suite: Suite) -> None:
    suite.profile()
    run = suite.run("-k", "eagle3", "--collect-only", "-q")
    assert run.status == 0, run.output
    assert run.lines("steps01")
    assert not run.booted
    assert not suite.results.exists()


# --- the measurements ---


@pytest.mark.parametrize("depth", ALL)
def test_a_measurement_says_what_ran_and_holds_every_sample(swept: Swept, depth: int) -> None:
    told = swept.suite.measured(depth)
    server = told["server"]
    assert (told["profile"], told["depth"], server["version"]) == ("small", depth, "0.5.23")
    assert ("--speculative-num-steps" in server["arguments"]) == (depth > 0)
    assert server["environment"]["STANDIN"] == str(swept.suite.folder / "standin")
    assert server["log"] == str(swept.suite.results / f"depth-{depth}.log")
    assert told["accept_source"] == ("stream" if depth else "plain")
    assert [(s["prompt"], s["repeat"]) for s in told["samples"]] == [(f"p{n}", 0) for n in range(PROMPTS)]


def test_a_sample_has_tokens_counts_times_and_the_digest_of_its_text(swept: Swept) -> None:
    sample = swept.suite.measured(2)["samples"][0]
    text = "".join(model.words("This is prompt 0.", 33))
    assert (sample["tokens"], sample["verifies"], sample["accepted_histogram"]) == (33, 16, [8, 0, 8])
    assert sample["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert sample["ttft_s"] > 0
    assert sample["decode_s"] >= 16 * 0.003


# --- what a person sees ---


def test_the_table_has_a_row_per_server_with_counts_and_verdict(swept: Swept) -> None:
    table = swept.run.output.partition("verdict\n")[2].partition("\n×")[0]
    rows = {words[0]: words for line in table.splitlines() if (words := line.split())}
    accept_lengths = {depth: rows[str(depth)][5] for depth in ALL}
    assert accept_lengths == {0: "1.000", 1: "1.600", 2: "2.000", 3: "2.667", 5: "4.000", 10: "5.333"}
    assert {depth: rows[str(depth)][1] for depth in DEPTHS} == {1: "2", 2: "3", 3: "4", 5: "6", 10: "11"}
    assert [rows[str(depth)][8] for depth in ALL] == ["baseline", *["holds"] * 5]


def test_the_summary_names_the_best_depth_where_the_time_went_and_where_the_evidence_lies(swept: Swept) -> None:
    assert swept.run.lines("Best: ", " × the plain server")
    assert swept.run.lines("Time ", "boot ", "measure ", "stop ", "other ")
    assert swept.run.lines(f"Measurements and logs: {swept.suite.results}")
    assert swept.run.lines("depth 10: depth-10.json, depth-10.log")


def test_junit_carries_the_figures_of_each_throughput_test(swept: Swept) -> None:
    cases = {case.get("name"): case for case in ET.parse(swept.junit).iter("testcase")}
    case = cases["test_eagle3_throughput_holds_its_floor[steps02]"]
    told = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (told["depth"], told["accept_length"], told["verifies"]) == ("2", "2.0", str(16 * PROMPTS))
    assert told["accept_source"] == "stream"
    assert told["throughput_floor"] == "0.2"
    assert float(told["throughput"] or 0) > 0
    assert float(told["ratio_to_baseline"] or 0) > 0


# --- secrets and privacy ---


def test_secrets_are_in_no_file_of_the_results_and_not_in_the_output(swept: Swept) -> None:
    keys = {line["key"] for line in swept.run.record if line["event"] == "booting"}
    assert len(keys) == len(ALL), "each server has a key of its own"
    files = [path for path in swept.suite.results.rglob("*") if path.is_file()]
    texts = [swept.run.output, swept.junit.read_text(), *(path.read_text() for path in files)]
    for secret in (*keys, *SECRETS.values()):
        assert not [text for text in texts if secret in text]
    log = (swept.suite.results / "depth-2.log").read_text()
    assert "HF_TOKEN=[hidden]" in log
    assert "SERVICE_TOKEN=[hidden]" in log


def test_results_are_the_users_alone(swept: Swept) -> None:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in swept.suite.results.rglob("*")}
    assert stat.S_IMODE(swept.suite.results.stat().st_mode) == 0o700
    assert {path: mode for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_control_characters_of_a_model_reach_neither_terminal_nor_report(suite: Suite) -> None:
    suite.profile(2)
    nasty = "\x1b[31mred\x07\x9b2J"
    suite.faults(d2={"words": {"3": nasty, "5": "\x1b]0;title\x07"}})
    junit = suite.folder / "junit.xml"
    run = suite.run("-k", "steps02", f"--junit-xml={junit}")
    assert run.failed() == {"text_is_the_baselines[steps02]"}
    assert "red" in run.output
    assert not [c for c in run.output + junit.read_text() if not (c.isprintable() or c == "\n")]


# --- one run compared with another ---


def gated(suite: Suite, swept: Swept, depth: str) -> Run:
    """A run of one depth against the whole sweep's, which was saved."""
    suite.profile(environment={"SERVICE_TOKEN": SECRETS["SERVICE_TOKEN"]})
    storage = f"--benchmark-storage=file://{swept.suite.folder}/benchmarks"
    gate = ("--benchmark-autosave", "--benchmark-compare=0001", "--benchmark-compare-fail=median:300%")
    return suite.run("-k", f"eagle3 and {depth}", storage, *gate)


def saved(swept: Swept) -> int:
    return len(list((swept.suite.folder / "benchmarks").rglob("*.json")))


def test_one_depth_boots_exactly_two_servers_and_is_compared_with_an_earlier_night(suite: Suite, swept: Swept) -> None:
    before = saved(swept)
    run = gated(suite, swept, "steps02")
    assert run.status == 0, run.output
    assert run.booted == [0, 2]
    assert run.left == []
    assert run.lines("Not judged, as not asked for:", "[steps10]")
    assert saved(swept) == before + 1


def test_a_night_twenty_times_slower_fails_its_comparison_and_is_not_saved(suite: Suite, swept: Swept) -> None:
    before = saved(swept)
    suite.faults(d10={"cycle_factor": 20})
    run = gated(suite, swept, "steps10")
    assert run.failed() == {"throughput_holds_its_floor[steps10]"}, run.output
    assert run.lines("median +", "past --benchmark-compare-fail, compared with")
    assert run.lines("Not saved, so that nothing is compared with it")
    assert saved(swept) == before

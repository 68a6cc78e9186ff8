"""What pytest-benchmark's user sees of a replayed measurement."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from fixtures import replay
from fixtures.analysis.facts import short_key
from tests.kit import builders
from tests.kit.guest import MACHINE, PERF, Guest

pytest_plugins = ["pytester"]

CPU = builders.RECORDINGS / "cpu-sglang-0.5.23"


@pytest.fixture
def guest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Guest:
    return Guest(pytester, monkeypatch)


def column(result: pytest.RunResult, name: str) -> dict[str, str]:
    """A column of pytest-benchmark's table by the test's name."""
    lines = result.outlines
    heading = next(line for line in lines if line.startswith("Name (time in"))
    index = heading.split(")", 1)[1].split().index(name)
    rows = [line.split() for line in lines if line.startswith("test_")]
    # Of several rows each figure has its multiple of the best beside it, in brackets.
    return {row[0]: [word for word in row[1:] if not word.startswith("(")][index] for row in rows}


def written(guest: Guest, *options: str) -> dict[str, Any]:
    """What --benchmark-json writes."""
    guest.run("--benchmark-json=out.json", *options)
    content: dict[str, Any] = json.loads((guest.pytester.path / "out.json").read_text())
    return content


def test_ops_is_tokens_per_second(guest: Guest) -> None:
    baseline, fast = (
        builders.from_noise_recording(CPU / f"noise_cpu_{name}.json", depth) for name, depth in (("base", 0), ("d2", 2))
    )
    guest.measure(baseline, fast)
    ops = column(guest.run(), "OPS")
    assert float(ops["test_throughput[0]"]) == pytest.approx(baseline.throughput, abs=1e-3)
    assert float(ops["test_throughput[2]"]) == pytest.approx(fast.throughput, abs=1e-3)


def test_ops_above_a_thousand_is_not_shown_in_thousands(guest: Guest) -> None:
    guest.measure(builders.measurement(2, (builders.sample(decode_s=0.05),)))
    assert column(guest.run(), "OPS")["test_throughput[2]"] == "2,000.0000"


def test_a_round_is_one_sample_in_seconds_per_token(guest: Guest) -> None:
    guest.measure(builders.measurement(2, (builders.sample("a", decode_s=0.5), builders.sample("b", decode_s=0.25))))
    stats = written(guest)["benchmarks"][1]["stats"]
    assert stats["data"] == [0.005, 0.0025]
    assert (stats["min"], stats["median"], stats["max"]) == (0.0025, 0.00375, 0.005)


def test_with_unequal_lengths_ops_is_the_mean_over_samples_and_the_throughput_lies_beside_it(guest: Guest) -> None:
    short, long = builders.sample("a", tokens=101, decode_s=1.0), builders.sample("b", tokens=301, decode_s=1.0)
    guest.measure(builders.measurement(2, (short, long)))
    benchmark = written(guest)["benchmarks"][1]
    assert benchmark["stats"]["ops"] == pytest.approx(150)  # 1 / mean(1/100, 1/300)
    assert benchmark["extra_info"]["throughput"] == 200  # 400 tokens in 2 s


def test_the_json_carries_the_figures_beside_the_times(guest: Guest) -> None:
    extra_info = written(guest)["benchmarks"][1]["extra_info"]
    assert extra_info.pop("comparability") == short_key(builders.measurement())
    assert extra_info.pop("context")["SGLang"] == "0.5.23"
    assert extra_info == {
        "profile": "cpu-tiny",
        "depth": 2,
        "throughput": 200,
        "accept_length": 2,
        "seconds_per_cycle": 0.01,
        "verifies": 200,
        "ratio_to_baseline": 2,
        "throughput_floor": 1.5,
        "accept_length_floor": 1.8,
        "sglang_version": "0.5.23",
        "accept_source": "test",
    }


def test_without_a_common_prompt_there_is_no_ratio_and_the_json_stays_json(guest: Guest) -> None:
    guest.measure(builders.measurement(2, (builders.sample("elsewhere"),)))
    guest.run("--benchmark-json=out.json")

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} isn't JSON")

    content = json.loads((guest.pytester.path / "out.json").read_text(), parse_constant=refuse)
    assert content["benchmarks"][1]["extra_info"]["ratio_to_baseline"] is None


def test_the_json_says_what_its_seconds_are(guest: Guest) -> None:
    assert written(guest)["benchmarks"][0]["options"]["timer"] == "VirtualClock: seconds per output token"


def test_the_figures_are_properties_in_junit(guest: Guest) -> None:
    guest.run("--junitxml=junit.xml")
    case = ET.parse(guest.pytester.path / "junit.xml").findall(".//testcase")[1]
    properties = {p.get("name"): p.get("value") for p in case.findall("properties/property")}
    assert properties["throughput"] == "200.0"
    assert properties["accept_length"] == "2.0"
    assert "context" not in properties
    assert properties["depth"] == "2"


def test_a_group_that_the_test_chose_stays(guest: Guest) -> None:
    guest.write(
        "perf/test_eagle3.py",
        PERF.replace("@pytest.mark.par", "@pytest.mark.benchmark(group='mine')\n@pytest.mark.par"),
    )
    assert [b["group"] for b in written(guest)["benchmarks"]] == ["mine", "mine"]


def test_a_timer_that_the_test_chose_is_refused(guest: Guest) -> None:
    timed = "import time\n" + PERF.replace(
        "@pytest.mark.par", "@pytest.mark.benchmark(timer=time.time)\n@pytest.mark.par"
    )
    guest.write("perf/test_eagle3.py", timed)
    result = guest.run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*WrongTimerError: *aren't seconds per token*may not name a timer."])


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-cprofile=cumtime", "--benchmark-warmup=on"])
def test_a_replay_survives_the_options_that_call_it_oftener_or_less_often(guest: Guest, option: str) -> None:
    guest.run(option).assert_outcomes(passed=2)


def test_a_warm_up_that_pytest_benchmark_was_asked_for_changes_no_figure(guest: Guest) -> None:
    assert written(guest, "--benchmark-warmup=on")["benchmarks"][1]["stats"]["data"] == [0.005] * 4


def test_machine_info_is_the_same_after_a_new_boot_kernel_python_and_container() -> None:
    tonight = json.loads(json.dumps(MACHINE))
    later = json.loads(json.dumps(MACHINE)) | {"node": "night-2", "release": "6.1.0-2", "python_version": "3.11.8"}
    later["cpu"] |= {"hz_actual": [2500000000, 0], "flags": ["avx", "avx2"]}
    replay.machine_info(tonight, {"accelerators": ["H200"]})
    replay.machine_info(later, {"accelerators": ["H200"]})
    assert tonight == later
    assert tonight["cpu"] == {"brand_raw": "AMD EPYC", "count": 2}
    assert tonight["host"] == {"accelerators": ["H200"]}


def test_what_machine_info_loses_is_kept_as_context(guest: Guest) -> None:
    content = written(guest)
    assert "node" not in content["machine_info"]
    assert content["context"]["node"] == "night-1"
    assert content["context"]["python_version"] == "3.11.7"


def test_machine_info_without_facts_of_the_cpu_is_no_error() -> None:
    info: dict[str, Any] = {"system": "Linux", "cpu": None}
    replay.machine_info(info, {})
    assert info == {"system": "Linux", "cpu": {}, "host": {}}


def test_two_runs_of_this_very_machine_are_one_machine(guest: Guest) -> None:
    guest.write("conftest.py", _without_machine(Path(guest.pytester.path, "conftest.py").read_text()))
    guest.run("--benchmark-autosave").assert_outcomes(passed=2)
    guest.run("--benchmark-compare", "--benchmark-compare-fail=median:1%").assert_outcomes(passed=2)


def _without_machine(conftest: str) -> str:
    return conftest.partition("def pytest_benchmark_generate_machine_info")[0]

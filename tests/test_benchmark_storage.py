"""What a user sees of pytest-benchmark's comparison: each of its traps, and what is said instead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.analysis.measurement import Measurement
from fixtures.benchmark_storage import Unmatched, differences, unmatched
from tests.kit import builders
from tests.kit.guest import PERF, Guest

pytest_plugins = ["pytester"]

H200 = builders.RECORDINGS / "h200-sglang-0.5.17"
GATED = ("--benchmark-autosave", "--benchmark-compare", "--benchmark-compare-fail=median:10%")
REMEDY = "run once with --benchmark-autosave and without --benchmark-compare and --benchmark-compare-fail"


@pytest.fixture
def guest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Guest:
    return Guest(pytester, monkeypatch)


@pytest.fixture
def second_night(guest: Guest) -> Guest:
    guest.run("--benchmark-autosave").assert_outcomes(passed=2)
    return guest


def refusal(result: pytest.RunResult) -> str:
    """The message of a run that was refused before anything booted."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "A server boots" not in result.stdout.str()
    assert "Traceback" not in result.stderr.str()
    return result.stderr.str()


def slower(guest: Guest, factor: float) -> None:
    guest.measure(builders.slowed(builders.measurement(2), factor))


# The first night


def test_a_comparison_with_an_empty_storage_is_refused_with_the_first_nights_remedy(guest: Guest) -> None:
    message = refusal(guest.run(*GATED))
    assert f"no run to compare with in {guest.pytester.path / '.benchmarks'}" in message
    assert f"If this is the first night, {REMEDY}." in message


def test_the_first_nights_remedy_works(guest: Guest) -> None:
    guest.run("--benchmark-autosave").assert_outcomes(passed=2)
    guest.run(*GATED).assert_outcomes(passed=2)


def test_after_a_python_upgrade_the_older_runs_are_offered_and_can_be_compared_with(second_night: Guest) -> None:
    run = second_night.saved()[0]
    run.parent.rename(run.parent.with_name("Linux-CPython-3.10-64bit"))
    message = refusal(second_night.run(*GATED))
    option = f"--benchmark-compare=Linux-CPython-3.10-64bit/{run.stem}"
    assert "no run of this Python" in message
    assert option in message
    second_night.run(option, "--benchmark-compare-fail=median:10%").assert_outcomes(passed=2)


def test_an_unknown_run_is_refused_and_the_known_ones_are_named(second_night: Guest) -> None:
    message = refusal(second_night.run("--benchmark-compare=0042"))
    assert "--benchmark-compare=0042: no such run" in message
    assert second_night.saved()[0].name in message


def test_a_path_that_the_option_took_for_a_run_is_explained(second_night: Guest) -> None:
    message = refusal(second_night.run("--benchmark-compare", "perf"))
    assert "takes the next word for a run's number" in message


def test_a_path_of_three_parts_that_the_option_took_for_a_run_is_no_traceback(second_night: Guest) -> None:
    assert "--benchmark-compare=perf/a/b: " in refusal(second_night.run("--benchmark-compare", "perf/a/b"))


def test_a_limit_without_a_comparison_is_refused(guest: Guest) -> None:
    message = refusal(guest.run("--benchmark-compare-fail=median:10%"))
    assert "--benchmark-compare-fail compares with nothing: add --benchmark-compare." in message


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_a_comparison_of_nothing_is_refused(second_night: Guest, option: str) -> None:
    assert f"nothing to compare under {option}" in refusal(second_night.run(*GATED, option))


# Regressed and failed runs


def test_five_percent_slower_passes_a_limit_of_ten(second_night: Guest) -> None:
    slower(second_night, 1.05)
    second_night.run(*GATED).assert_outcomes(passed=2)


def test_a_regression_fails_its_test_and_says_from_what_to_what(second_night: Guest) -> None:
    slower(second_night, 1.11)
    result = second_night.run(*GATED, "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "median +11.0 %: 5 → 5.55 ms per token, past --benchmark-compare-fail, compared with *0001_*.json",
            "  200 → 180.2 tok/s (-9.9 %)",
            "  2 → 2 tokens per verify (+0.0 %)",
            "  10 → 11.1 ms per cycle (+11.0 %)",
            "FAILED *throughput?2? - Failed: median +11.0 %: 5 → *",
        ]
    )
    assert "PerformanceRegression" not in result.stdout.str()
    assert "median +11.0 %" in (second_night.pytester.path / "junit.xml").read_text()


def test_a_limit_in_seconds_works_on_seconds_per_token(second_night: Guest) -> None:
    slower(second_night, 1.05)  # 0.25 ms
    second_night.run("--benchmark-compare", "--benchmark-compare-fail=mean:0.0003").assert_outcomes(passed=2)
    second_night.run("--benchmark-compare", "--benchmark-compare-fail=mean:0.0002").assert_outcomes(passed=1, failed=1)


def test_another_sglang_is_named_beside_a_regression(second_night: Guest) -> None:
    newer = builders.measurement(2)
    newer = replace(newer, server=replace(newer.server, version="0.5.24"))
    second_night.measure(builders.slowed(newer, 1.2))
    second_night.run(*GATED).stdout.fnmatch_lines(["  SGLang 0.5.23 → 0.5.24"])


def test_a_regressed_run_is_not_saved_so_the_next_night_fails_too(second_night: Guest) -> None:
    slower(second_night, 1.11)
    second_night.run(*GATED).stdout.fnmatch_lines(["Not saved, *test_throughput?2? failed.*"])
    assert len(second_night.saved()) == 1
    second_night.run(*GATED).assert_outcomes(passed=1, failed=1)


def test_a_regression_that_is_meant_becomes_the_new_base_by_the_remedy(second_night: Guest) -> None:
    slower(second_night, 1.2)
    second_night.run("--benchmark-autosave").assert_outcomes(passed=2)
    second_night.run(*GATED).assert_outcomes(passed=2)


def test_small_regressions_add_up_unseen_since_each_night_becomes_the_next_ones_base(second_night: Guest) -> None:
    # The limit of this gate, which the docs tell: only a reference that stays put sees a creeping loss.
    for night in range(1, 4):
        slower(second_night, 1.09**night)
        second_night.run(*GATED).assert_outcomes(passed=2)
    slower(second_night, 1.09**3)
    result = second_night.run("--benchmark-compare=0001", "--benchmark-compare-fail=median:10%")
    result.assert_outcomes(passed=1, failed=1)


def test_a_run_below_its_floor_is_not_saved_but_its_json_is_written(second_night: Guest) -> None:
    slower(second_night, 1.5)
    second_night.run("--benchmark-autosave", "--benchmark-json=out.json").assert_outcomes(passed=1, failed=1)
    assert len(second_night.saved()) == 1
    content = json.loads((second_night.pytester.path / "out.json").read_text())
    assert [b["extra_info"]["throughput"] for b in content["benchmarks"]] == pytest.approx([100, 133.3], abs=0.1)
    assert content["failed"] == ["perf/test_eagle3.py::test_throughput[2]"]


def test_a_failure_of_another_test_keeps_the_run_out_of_the_storage(guest: Guest) -> None:
    guest.write("perf/test_eagle3_output.py", "def test_text():\n    assert 'a' == 'b'\n")
    guest.run("--benchmark-autosave").stdout.fnmatch_lines(["Not saved, *test_eagle3_output.py::test_text failed.*"])
    assert guest.saved() == []


def test_a_run_that_is_no_night_is_not_saved(guest: Guest) -> None:
    guest.settings["gate"]["mark"] = "the engine alone"
    guest.run("--benchmark-autosave").stdout.fnmatch_lines(["Not saved, *compared with it: the engine alone.*"])
    assert guest.saved() == []


def test_an_interrupted_run_is_not_saved(guest: Guest) -> None:
    guest.write("perf/test_late.py", "def test_late():\n    raise KeyboardInterrupt\n")
    guest.run("--benchmark-autosave").stdout.fnmatch_lines(["Not saved, *ended with exit status 2.*"])
    assert guest.saved() == []


def test_a_failed_runs_json_is_refused_as_a_base(guest: Guest) -> None:
    slower(guest, 1.5)
    guest.run("--benchmark-json=failed.json")
    message = refusal(guest.run("--benchmark-compare=failed.json", "--benchmark-compare-fail=median:10%"))
    assert "failed itself: perf/test_eagle3.py::test_throughput[2]." in message


@pytest.mark.parametrize("ending", ["assert False, 'short'", "pytest.fail('short', pytrace=False)"])
def test_a_test_that_fails_by_itself_tells_its_regression_too(second_night: Guest, ending: str) -> None:
    second_night.write("perf/test_eagle3.py", PERF + f"    if depth: {ending}\n")
    slower(second_night, 1.2)
    result = second_night.run(*GATED)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*short", "*median +20.0 %: 5 → 6 ms per token*"])


def test_a_test_that_skips_after_its_replay_fails_if_it_regressed(second_night: Guest) -> None:
    second_night.write("perf/test_eagle3.py", PERF + "    pytest.skip('undecided')\n")
    second_night.run(*GATED).assert_outcomes(skipped=2)
    slower(second_night, 1.2)
    second_night.run(*GATED).assert_outcomes(skipped=1, failed=1)


# Names


def test_a_renamed_test_is_refused_before_it_is_skipped_silently(second_night: Guest) -> None:
    second_night.write("perf/test_eagle3.py", PERF.replace("def test_throughput", "def test_speed"))
    message = refusal(second_night.run(*GATED))
    assert "has no benchmark in common with this session" in message


def test_a_depth_that_is_gone_is_refused(second_night: Guest) -> None:
    (second_night.pytester.path / "measured" / "02.json").unlink()
    message = refusal(second_night.run(*GATED))
    assert "holds perf/test_eagle3.py::test_throughput[2], which this session hasn't got: renamed or removed" in message
    assert REMEDY in message


def test_a_renamed_file_is_refused(second_night: Guest) -> None:
    perf = second_night.pytester.path / "perf"
    second_night.write("perf/test_more.py", "def test_more(benchmark):\n    benchmark.pedantic(int)\n")
    second_night.run("--benchmark-autosave")
    (perf / "test_more.py").rename(perf / "test_most.py")
    assert "holds perf/test_more.py::test_more, which" in refusal(second_night.run(*GATED))


def test_without_a_limit_what_is_gone_is_only_said(second_night: Guest) -> None:
    (second_night.pytester.path / "measured" / "02.json").unlink()
    result = second_night.run("--benchmark-compare")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*comparison with earlier runs*", "*0001_*test_throughput?2?, which this session*"])


@pytest.mark.parametrize(
    "options", [("-k", "throughput and 0"), ("--deselect=perf/test_eagle3.py::test_throughput[2]",)]
)
def test_what_was_deselected_is_said_to_be_not_judged(second_night: Guest, options: tuple[str, ...]) -> None:
    result = second_night.run(*GATED, *options)
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["Not judged, as not asked for: perf/test_eagle3.py::test_throughput?2? of *"])


def test_a_depth_that_was_left_out_is_said_to_be_not_judged(second_night: Guest) -> None:
    (second_night.pytester.path / "measured" / "02.json").unlink()
    second_night.settings["gate"]["depths_left_out"] = [2]
    second_night.run(*GATED).stdout.fnmatch_lines(["Not judged, as not asked for: *test_throughput?2? of *"])


def test_one_test_asked_for_by_its_id_is_judged_alone(second_night: Guest) -> None:
    result = second_night.run(*GATED, "perf/test_eagle3.py::test_throughput[0]", paths=())
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Not judged, as not asked for: *test_throughput?2? of *"])


def test_a_file_that_was_not_asked_for_is_not_judged(second_night: Guest) -> None:
    second_night.write("perf/test_more.py", "def test_more(benchmark):\n    benchmark.pedantic(int)\n")
    second_night.run("--benchmark-autosave")
    result = second_night.run(
        "--benchmark-compare", "--benchmark-compare-fail=median:10%", paths=("perf/test_eagle3.py",)
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["Not judged, as not asked for: perf/test_more.py::test_more of *"])


def test_a_new_depth_passes_and_is_said_to_be_not_judged(second_night: Guest) -> None:
    second_night.measure(builders.measurement(3))
    result = second_night.run(*GATED)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["Not judged, as *0001_* hasn't got them: perf/test_eagle3.py::test_throughput?3?."])


def test_tests_without_benchmarks_are_never_refused(second_night: Guest) -> None:
    second_night.write("perf/test_eagle3_output.py", "def test_text():\n    pass\n")
    second_night.run(*GATED, paths=("perf/test_eagle3_output.py",)).assert_outcomes(passed=1)


def test_names_are_told_apart_by_where_they_lack() -> None:
    assert unmatched(["a", "b", "c"], ["a", "d"], ["c"]) == Unmatched(missing=("b",), not_judged=("c",), new=("d",))


# Machines and profiles


def test_another_gpu_is_refused_and_named(second_night: Guest) -> None:
    second_night.settings["gate"]["host_facts"] = {"accelerators": ["H100"]}
    message = refusal(second_night.run(*GATED))
    assert "host.accelerators: ['H200'] → ['H100']" in message
    assert "--benchmark-storage=file://DIR" in message


def test_another_profile_is_refused_and_named(second_night: Guest) -> None:
    second_night.settings["gate"]["profile"] = "kimi-k2.5-int4"
    assert "profile: 'cpu-tiny' → 'kimi-k2.5-int4'" in refusal(second_night.run(*GATED))


def test_without_a_limit_another_gpu_is_only_said(second_night: Guest) -> None:
    second_night.settings["gate"]["host_facts"] = {"accelerators": ["H100"]}
    result = second_night.run("--benchmark-compare")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*means something else: host.accelerators: ?'H200'? → ?'H100'?.*"])


def test_a_new_kernel_and_another_clock_rate_are_the_same_machine(second_night: Guest) -> None:
    second_night.settings["machine"] |= {"node": "night-2", "release": "6.1.0-2"}
    second_night.settings["machine"]["cpu"] |= {"hz_actual": [2500000000, 0]}
    result = second_night.run(*GATED)
    result.assert_outcomes(passed=2)
    assert "machine_info is different" not in result.stdout.str() + result.stderr.str()


def test_differences_name_the_innermost_key() -> None:
    then, tonight = {"cpu": {"count": 2, "arch": "X86_64"}}, {"cpu": {"count": 4, "arch": "X86_64"}, "gpus": 1}
    assert list(differences(then, tonight)) == ["cpu.count: 2 → 4", "gpus: None → 1"]


# Recorded nights


def halves(name: str, depth: int) -> tuple[Measurement, Measurement]:
    """One recording as two nights: repeats 0 to 3, and 4 to 7."""
    whole = builders.from_noise_recording(H200 / name, depth)
    first, second = (tuple(s for s in whole.samples if (s.repeat < 4) is early) for early in (True, False))
    return replace(whole, samples=first), replace(whole, samples=second)


@pytest.mark.parametrize(("factor", "failed"), [(1.0, 0), (1.02, 1)])
def test_two_recorded_nights_of_one_h200_tell_two_percent(guest: Guest, factor: float, failed: int) -> None:
    base_then, base_now = halves("noise_base.json", 0)
    then, now = halves("noise_d2.json", 2)
    guest.measure(base_then, then)
    guest.run("--benchmark-autosave").assert_outcomes(passed=2)
    guest.measure(base_now, builders.slowed(now, factor))
    result = guest.run("--benchmark-compare", "--benchmark-compare-fail=median:1%")
    result.assert_outcomes(passed=2 - failed, failed=failed)


def test_the_nightly_line_of_the_docs_saves_the_first_night_and_gates_the_second(guest: Guest) -> None:
    docs = Path(__file__).parent.parent / "docs" / "benchmark.md"
    line = docs.read_text(encoding="utf-8").partition("```bash\n")[2].partition("```")[0]
    assert "--benchmark-compare" in line
    assert guest.shell(line) == 0
    slower(guest, 1.2)
    assert guest.shell(line) == 1
    assert len(guest.saved()) == 1

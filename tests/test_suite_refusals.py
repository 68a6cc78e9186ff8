"""Before anything boots: what is refused, by one clear message and the exit status of a usage error; the preflight."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.mounts import mounted
from tests.kit.suite import Run, Suite

pytestmark = pytest.mark.faults

USAGE_ERROR = pytest.ExitCode.USAGE_ERROR
NO_FOLDER = (
    "No such file or directory. It would be written when all is measured, so nothing was booted: make its folder, or "
    "give a file that can be written."
)


def refused(suite: Suite, *arguments: str, **options: Any) -> Run:
    """A run that was refused."""
    run = suite.run(*arguments, **options)
    assert run.status == USAGE_ERROR, run.output
    assert run.booted == []
    assert run.left == []
    assert not suite.results.exists()
    assert "Traceback" not in run.output
    return run


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param(
            lambda text: text.replace("stop_limit_s", "stop_limit"),
            "launch.stop_limit = 30.0: unknown key; did you mean launch.stop_limit_s",
            id="an-unknown-key",
        ),
        pytest.param(
            lambda text: text.replace("./draft", "./drafts"),
            '/drafts": there is no such folder; correct it, or fetch the model',
            id="a-missing-folder",
        ),
    ],
)
def test_a_wrong_profile_is_one_message(suite: Suite, changed: Callable[[str], str], told: str) -> None:
    suite.profile(changed=changed)
    run = refused(suite)
    assert run.lines("ERROR: ", told), run.output


@pytest.mark.parametrize(("option", "begins"), [("-k=eagle3", ""), ("--perf-preflight", "refused  {check}: ")])
def test_all_files_that_are_missing_are_told_at_once_with_profile_and_key(
    suite: Suite, option: str, begins: str
) -> None:
    suite.profile()
    profile = suite.folder / "small.toml"
    text, found = re.subn(r'(?m)^(prompts|oracle|draft) = ".*"$', r'\1 = "./absent"', profile.read_text())
    assert found == 3
    profile.write_text(text)
    run = refused(suite, option)
    for key in ("workload.prompts", "workload.oracle", "pair.draft"):
        told = f'{profile}: {key} = "{suite.folder}/absent": there is no such '
        assert run.lines(begins.format(check=key.partition(".")[2]) + told), run.output


def test_a_draft_that_is_a_pointer_of_git_lfs_is_refused(suite: Suite) -> None:
    suite.profile()
    (suite.folder / "draft" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    told = f"{suite.folder}/draft: has Git LFS pointers instead of weights (model.safetensors); run git lfs pull there"
    assert refused(suite).lines(f"ERROR: {told}")
    run = suite.run("--perf-preflight")
    assert run.status == USAGE_ERROR
    assert run.lines(f"refused  draft: {told}")


def test_a_profile_for_eight_gpus_says_so_in_one_paragraph(suite: Suite) -> None:
    run = refused(suite, "--perf-profile=kimi-k2.5-int4")
    (said,) = [line for line in run.output.splitlines() if line.strip()]
    assert said.startswith("ERROR: kimi-k2.5-int4 needs 8 GPUs")


@pytest.mark.parametrize("option", ["--perf-results", "--perf-report", "--perf-profile"])
def test_a_value_from_a_variable_that_is_not_set_is_refused(suite: Suite, option: str) -> None:
    suite.profile()
    (said,) = [line for line in refused(suite, option, "").output.splitlines() if line.strip()]
    assert said.startswith(f"ERROR: {option}: the value is empty, as from a variable that isn't set; give ")


def test_several_workers_are_refused_in_one_sentence(suite: Suite) -> None:
    suite.profile()
    run = refused(suite, "-n", "2")
    assert run.lines("ERROR: perf/ doesn't run under pytest -n: servers measured side by side share")


def test_a_host_with_gpus_and_no_profile_named_lists_them(suite: Suite) -> None:
    run = suite.run("-p", "tests.kit.gpus", "--perf-preflight", names_profile=False)
    assert run.status == USAGE_ERROR
    assert run.lines("This host has GPUs (0: NVIDIA H200, 1: NVIDIA H200)", "--perf-profile NAME or PATH")
    run = refused(suite, "-p", "tests.kit.gpus", names_profile=False)
    assert run.lines("This host has GPUs (0: NVIDIA H200, 1: NVIDIA H200)")


def test_a_comparison_with_an_empty_storage_is_answered_at_once_with_the_first_nights_remedy(suite: Suite) -> None:
    suite.profile()
    run = suite.run("--benchmark-compare")
    assert run.status == USAGE_ERROR
    assert run.booted == []
    assert run.lines("no run to compare with in", "Nothing was booted", "run once with --benchmark-autosave")


def test_a_results_folder_on_a_read_only_mount_is_refused(suite: Suite) -> None:
    """CI runs as root, to whom file modes are no obstacle."""
    suite.profile()
    with mounted(suite.folder / "ro", "ro") as folder:
        run = refused(suite, f"--perf-results={folder}/night")
    assert run.lines(f"ERROR: {folder}/night: Read-only file system; ", "name another folder with --perf-results")


@pytest.mark.parametrize("option", ["-k=eagle3", "--perf-preflight"])
def test_a_results_folder_that_cannot_be_is_told_as_such_and_not_as_a_full_disk(suite: Suite, option: str) -> None:
    suite.profile()
    run = refused(suite, option, "--perf-results=/proc/night")
    assert run.lines("/proc/night: No such file or directory; measurements and logs are kept there")
    assert "GiB free" not in run.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--benchmark-json={folder}/none/b.json"],
            f"--benchmark-json {{folder}}/none/b.json: {NO_FOLDER}",
        ),
        (["--benchmark-json={folder}"], "--benchmark-json {folder}: Is a directory. It would be"),
        (["--junit-xml=/proc/none/j.xml"], "--junit-xml /proc/none/j.xml: No such file or directory. It would be"),
        (["--junit-xml=/proc/j.xml"], "--junit-xml /proc/j.xml: No such file or directory. It would be"),
        (
            ["--benchmark-autosave", "--benchmark-storage=file:///proc/none"],
            "--benchmark-storage /proc/none: No such file or directory. It would be",
        ),
    ],
)
def test_what_could_not_be_written_at_the_end_is_refused_beforehand(
    suite: Suite, options: list[str], told: str
) -> None:
    suite.profile()
    asked = [option.format(folder=suite.folder) for option in options]
    assert refused(suite, *asked).lines(f"ERROR: {told.format(folder=suite.folder)}")
    assert refused(suite, *asked, "--perf-preflight").lines(f"refused  files: {told.format(folder=suite.folder)}")


def test_what_can_be_written_at_the_end_is_left_as_it_was_beforehand(suite: Suite) -> None:
    suite.profile(1)
    (suite.folder / "b.json").write_text("earlier")
    written = (f"--benchmark-json={suite.folder}/b.json", f"--junit-xml={suite.folder}/new/j.xml")
    run = suite.run("--perf-preflight", *written, "--benchmark-autosave")
    assert run.status == 0, run.output
    assert (suite.folder / "b.json").read_text() == "earlier"
    assert not (suite.folder / "new").exists()


def test_a_run_without_pytest_benchmark_is_refused(suite: Suite) -> None:
    suite.profile()
    run = refused(suite, "-p", "no:benchmark", storage=False)
    assert run.lines("ERROR: perf/ needs pytest-benchmark, which this pytest doesn't load: leave -p no:benchmark out")


@pytest.mark.parametrize("option", ["-k=eagle3", "--perf-preflight"])
def test_a_lock_folder_that_cannot_be_is_told_once_and_before_anything(suite: Suite, option: str) -> None:
    suite.profile()
    run = refused(suite, option, EAGLE3_PERF_LOCKS="/proc/none")
    assert run.output.count("the lock folder /proc/none can't be used: No such file or directory. Make it wri") == 1


def test_an_unknown_depth_is_refused(suite: Suite) -> None:
    suite.profile(1, 2)
    assert refused(suite, "--perf-depths=7").lines("depths asked for: 7; the profile has depths (and floors) for 1, 2")


def test_preflight_tells_the_plan_and_boots_nothing(suite: Suite) -> None:
    suite.profile()
    run = suite.run("--perf-preflight")
    assert run.status == 0, run.output
    assert run.lines("fine ", "sglang: 0.5.23")
    assert run.lines("depth 10: EAGLE-3, 10 steps, 11 draft tokens")
    assert run.lines("lease: cpu free")
    assert run.output.rstrip().endswith("ready")
    assert run.booted == []
    assert run.left == []
    assert not suite.results.exists()


def test_a_selection_without_a_test_leaves_no_folder(suite: Suite) -> None:
    suite.profile(1)
    assert suite.run("-k", "typo").status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not suite.results.exists()


def test_a_folder_that_was_there_stays_though_nothing_is_measured(suite: Suite) -> None:
    suite.profile(1)
    suite.results.mkdir()
    assert suite.run("-k", "typo").status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert suite.results.exists()

"""--perf-report on whole runs: the page of a night, what GitHub gets of it, and refusals before anything boots."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from tests.kit.suite import Suite

pytestmark = pytest.mark.faults


def test_a_sweep_leaves_its_page_and_the_next_night_has_a_trend(suite: Suite) -> None:
    suite.profile(1)
    folder, storage = suite.folder / "report", f"--benchmark-storage=file://{suite.folder}/nights"
    options = ("-k", "eagle3", "--perf-report", str(folder), storage, "--benchmark-autosave")
    run = suite.run(*options)
    assert run.status == 0, run.output
    assert run.lines("Report: ", "report/index.html")
    page = (folder / "index.html").read_text()
    assert "Holds: " in page
    assert "No trend" in page
    assert suite.run(*options).status == 0
    assert "Up to 2 comparable nights" in (folder / "index.html").read_text()


def test_a_night_that_falls_short_is_annotated_and_summed_up_on_github(suite: Suite) -> None:
    suite.profile(1, changed=lambda text: text.replace("1 = 1.5", "1 = 1.9"))
    summary = suite.folder / "summary.md"
    summary.write_text("earlier steps\n")
    run = suite.run(
        "-k",
        "eagle3",
        "--perf-report",
        str(suite.folder / "report"),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert run.status == 1, run.output
    (told,) = run.lines("::error file=")
    assert "title=accept length at 1 step%3A falls short::Accept length at 1 step falls short of" in told
    told_of = summary.read_text()
    assert told_of.startswith("earlier steps\n")
    assert "Falls short: accept length at 1 step" in told_of


def test_a_folder_that_cannot_be_written_is_refused_before_anything_boots(suite: Suite, tmp_path: Path) -> None:
    suite.profile(1)
    (tmp_path / "file").write_text("")
    run = suite.run("-k", "eagle3", "--perf-report", str(tmp_path / "file"))
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.booted == []
    assert run.lines("--perf-report", "Nothing was booted")


def test_without_matplotlib_a_page_is_refused_before_anything_boots(suite: Suite, tmp_path: Path) -> None:
    suite.profile(1)
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib/__init__.py").write_text("raise ImportError('no matplotlib here')\n")
    run = suite.run("-k", "eagle3", "--perf-report", str(tmp_path / "report"), PYTHONPATH=str(tmp_path))
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.booted == []
    assert run.lines("matplotlib", "pip install -e '.[report]'")

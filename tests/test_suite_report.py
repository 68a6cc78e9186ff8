"""--perf-report on whole runs: the page of a night, what GitHub gets of it, and refusals before anything boots."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from tests.kit.scratch import ROOT
from tests.kit.suite import Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults


WIDE = "\n[reference]\ndelta = 0.9\nbeta = 0.05\nbelieved_after_boots = 1\n"
"""Other work on the machine must not fail a night; the fault makes cycles many times slower."""
PROF = "EAGLE3_PROF cycles=400 | draft steps: 1.0 ms | target verify: 2.0 ms | draft re-extend: 0.5 ms | TOTAL: 4.0 ms"
TOLD = {"streaming": [["say", PROF]]}
"""A server of a team's own build that prints its phases."""


@dataclass(frozen=True)
class Nights:
    """Two nights on one reference, the second with a slower depth."""

    first: Run
    first_page: str
    second: Run
    page: str
    """The second night's, without markup."""
    folder: Path
    job: str
    """What the second night added to the job's summary on GitHub."""


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[Nights]:
    with suite_in(tmp_path_factory.mktemp("nights"), warm) as suite:
        suite.profile(1, 2, looks_until=2, changed=instrumented)
        folder, job = suite.folder / "report", suite.folder / "job.md"
        options = ("-k", "eagle3", "--perf-report", str(folder), "--benchmark-autosave")
        suite.faults(d1=TOLD, d2=TOLD)
        first = suite.run(*options, "--perf-accept=first night")
        first_page = (folder / "index.html").read_text()
        suite.faults(d1=TOLD, d2={**TOLD, "cycle_factor": 4})
        job.write_text("earlier steps\n")
        second = suite.run(*options, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(job))
        page = (folder / "index.html").read_text()
        yield Nights(first, first_page, second, plain(page), folder, job.read_text())


def instrumented(text: str) -> str:
    return text.replace("[launch.flags]", "instrument = true\n[launch.flags]") + WIDE


def plain(page: str) -> str:
    """What is to be read on a page, with pictures' names."""
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL))


def part(nights: Nights, name: str) -> str:
    """One section of the second night's page, without markup."""
    page = (nights.folder / "index.html").read_text()
    return " ".join(plain(re.split(rf'<section id="{name}"[^>]*>', page)[1].partition("</section>")[0]).split())


def test_the_first_night_leaves_a_page_that_says_what_it_cannot_know(nights: Nights) -> None:
    assert nights.first.status == 0, nights.first.output
    assert nights.first.lines("Report: ", "report/index.html")
    assert "Holds: " in nights.first_page
    for missing in (
        "No trend",
        "No attribution",
        "No prompts against the reference",
        "No reference: nothing to differ",
    ):
        assert missing in nights.first_page


def test_the_verdict_comes_first_and_in_one_line(nights: Nights) -> None:
    assert nights.second.status == 1, nights.second.output
    assert "Falls short: cycle time at 2 steps" in nights.page


def test_the_attribution_says_by_how_much_and_which_phases(nights: Nights) -> None:
    why = part(nights, "why")
    assert re.search(r"2 steps lost [\d.]+ %", why)
    assert "Since the reference" in why


@pytest.mark.parametrize("picture", ["throughput", "accept-length", "acceptance", "phases", "reference", "trend"])
def test_every_picture_is_there(nights: Nights, picture: str) -> None:
    assert f'id="picture-{picture}"' in (nights.folder / "index.html").read_text()


def test_acceptance_and_phases_are_those_that_the_servers_told(nights: Nights) -> None:
    """Of two drafts, 8 of 16 verifies accept the first, and all of them the second."""
    pictures = part(nights, "pictures")
    assert "Counted at 2 steps. 1: 0.50; 2: 1.00." in pictures
    assert "Steps and the whole cycle. 1: 4.00 ms; 2: 4.00 ms." in pictures


def test_the_trend_has_both_nights_in_one_series(nights: Nights) -> None:
    assert "Up to 2 comparable nights, this one included" in part(nights, "nights")


def test_what_differs_from_the_reference_is_named(nights: Nights) -> None:
    identity = part(nights, "identity")
    assert "first night" in identity
    assert "Nothing that is known differs from then." in identity
    assert "max_tokens" in identity


def test_checks_are_told_for_every_server(nights: Nights) -> None:
    checks = part(nights, "checks")
    assert all(re.search(rf"\b{depth}\b.*(:|steps\.)", checks) for depth in (0, 1, 2))
    assert "No check's findings were kept" not in checks


def test_every_log_is_linked_to(nights: Nights) -> None:
    page = (nights.folder / "index.html").read_text()
    for name in ("depth-0.log", "depth-1.log", "depth-2.log"):
        (link,) = set(re.findall(rf'href="([^"]*{name})"', page))
        assert (nights.folder / link).is_file()


def test_a_night_that_falls_short_is_annotated_on_github(nights: Nights) -> None:
    (told,) = nights.second.lines("::error file=")
    assert "title=cycle time at 2 steps%3A falls short::A cycle at 2 steps takes longer than in the reference" in told


def test_the_jobs_summary_has_verdict_table_attribution_and_a_chart_that_github_draws(nights: Nights) -> None:
    """It shows no file of the job's, so none is linked to."""
    assert nights.job.startswith("earlier steps\n")
    assert "**Falls short: cycle time at 2 steps.**" in nights.job
    assert "| 2 | 3 | " in nights.job
    assert re.search(r"2 steps lost [\d.]+ %", nights.job)
    assert "```mermaid\nxychart-beta\n  x-axis steps [1, 2]" in nights.job
    assert "![" not in nights.job


def test_the_summary_beside_the_page_shows_the_picture_that_lies_there(nights: Nights) -> None:
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", (nights.folder / "summary.md").read_text())
    assert (nights.folder / picture).read_text().startswith("<?xml")


def test_a_launch_that_is_not_what_was_asked_is_annotated_and_told_among_the_checks(suite: Suite) -> None:
    """No verdict falls short: what failed is a check."""
    suite.profile(1)
    suite.faults(d1={"reported": {"disable_radix_cache": True, "speculative_num_steps": 4}})
    folder = suite.folder / "report"
    run = suite.run("-k", "launch", "--perf-report", str(folder), GITHUB_ACTIONS="true")
    assert run.status == 1, run.output
    (told,) = run.lines("::error file=")
    assert "title=launch at 1 step failed::" in told
    page = plain((folder / "index.html").read_text())
    assert "Falls short: launch at 1 step." in page
    assert re.search(r"1 step: .*speculative_num_steps", page)


ASKED = pytest.mark.parametrize(
    ("option", "begins"), [("-k=eagle3", "ERROR: "), ("--perf-preflight", "refused  files: ")]
)
"""A run, and what is told before one; how each begins a refusal."""


@ASKED
def test_a_folder_that_cannot_be_written_is_refused_before_anything_boots(
    suite: Suite, tmp_path: Path, option: str, begins: str
) -> None:
    suite.profile(1)
    (tmp_path / "file").write_text("")
    run = suite.run(option, "--perf-report", str(tmp_path / "file"))
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.booted == []
    assert run.lines(f"{begins}--perf-report {tmp_path}/file: Not a directory.", "nothing was booted")
    assert not suite.results.exists()


@ASKED
@pytest.mark.parametrize(
    "error", ["ImportError('it is broken')", "ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')"]
)
def test_without_matplotlib_a_page_is_refused_before_anything_boots_and_the_extra_named(
    suite: Suite, tmp_path: Path, option: str, begins: str, error: str
) -> None:
    suite.profile(1)
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib/__init__.py").write_text(f"raise {error}\n")
    run = suite.run(option, "--perf-report", str(tmp_path / "report"), PYTHONPATH=str(tmp_path))
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.booted == []
    assert run.lines(f"{begins}--perf-report {tmp_path}/report: ", f" -m pip install -e '{ROOT}[report]'")
    assert not (tmp_path / "report").exists()

"""What the page's parts say of a night, part by part: partners that alternated, what differs, checks, logs."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from fixtures.analysis.checks import Check, Finding
from fixtures.analysis.facts import Comparison
from fixtures.report import contents, github, pictures, sections, trend
from fixtures.report.contents import Report
from fixtures.report.sections import Section
from tests.kit import reports
from tests.kit.builders import measurement, slowed


def words(section: Section) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", section.body)).split())


def alternating() -> Report:
    """2 steps whose partners were twice as slow as the plain server was by itself: 4 × instead of 2 ×."""
    plain = measurement(0)
    measured = {0: plain, 2: measurement(2)}
    return replace(reports.empty(), measured=measured, alternated={2: slowed(plain, 2.0)}, failed={})


def test_a_depth_is_compared_with_what_alternated_with_it_wherever_it_is_told() -> None:
    report = alternating()
    assert contents.rows(report)[1][3] == "4.000"
    assert "4.000 ×" in github.summary(report)
    shown = pictures.throughput(report, pictures.model_of(report))
    assert shown is not None
    assert "2: 4.000 ×" in shown.description
    (_, night) = trend.tonight(report.measured, report.alternated)
    assert night.ratio == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ({"gpu": "NVIDIA H200", "gpu_count": 8, "cpu": "Xeon", "cores": 128}, "8 × NVIDIA H200 · SGLang "),
        ({"gpu": None, "cpu": "AMD EPYC", "cores": 2}, "2 cores of AMD EPYC · SGLang "),
        ({}, "? cores of an unknown CPU · SGLang "),
        ({"client": {"cpu": "Xeon", "cores": 4}}, "servers of somebody else's, asked from Xeon · SGLang "),
    ],
)
def test_what_was_measured_on_is_the_gpus_or_the_cpu(host: dict[str, object], told: str) -> None:
    assert contents.where(replace(reports.empty(), measured={2: measurement(2, host=host)})).startswith(told)


def test_what_differs_at_some_depths_only_says_at_which() -> None:
    everywhere, somewhere = "sglang: '0.5.22' → '0.5.23'", "flags.--x: None → '1'"
    both, one = Comparison((), (everywhere, somewhere)), Comparison((), (everywhere,))
    report = replace(reports.full(), comparisons={0: one, 1: both, 2: both})
    told = words(sections.identity(report))
    assert f"Differs from then, and may explain a change: {everywhere} {somewhere} (1 and 2 steps)" in told


def test_what_is_not_comparable_says_what_it_was_then() -> None:
    report = replace(reports.full(), comparisons={0: Comparison(("dtype: 'bfloat16' → 'float32'",), ())})
    assert "Not comparable, since it was then: dtype: 'bfloat16' → 'float32'" in words(sections.identity(report))


def test_a_finding_of_several_servers_is_told_once() -> None:
    finding = Finding(Check.NOISY_HOST, "Load was 9.", "Times mean little.", "Wait.")
    told = words(sections.checks(replace(reports.empty(), findings={0: (), 1: (finding,), 2: (finding,)})))
    assert told.count("Load was 9.") == 1
    assert told.startswith("1 and 2 steps: ")
    assert told.endswith("✓ Nothing found at no speculation.")


def test_the_log_of_a_depth_without_a_measurement_is_linked_to(tmp_path: Path) -> None:
    log = tmp_path / "results" / "depth-10.log"
    log.parent.mkdir()
    log.touch()
    page = sections.evidence(replace(reports.empty(), logs={10: (log,)}), tmp_path / "report")
    assert '<a href="../results/depth-10.log"><code>depth-10.log</code></a>' in page.body


def test_acceptance_that_servers_do_not_count_is_the_oracles() -> None:
    """The recorded servers told counts only, and the oracle's histograms fit every one."""
    report = reports.h200()
    shown = pictures.acceptance(report, pictures.model_of(report))
    assert shown is not None
    assert shown.description.startswith("The oracle's, whose counts were seen. 1: 0.6")
    alone = replace(report, expected={})
    shown = pictures.acceptance(alone, pictures.model_of(alone))
    assert shown is not None
    assert shown.description.startswith("From accept lengths over depths. 1: 0.6")

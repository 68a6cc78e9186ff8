"""What a report costs, and whether the README's picture is one of it; needs no browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from fixtures.report import html
from tests.kit import kept_picture, reports

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/report.png"


def test_a_report_of_six_servers_on_a_quarter_of_nights_takes_less_than_three_seconds(tmp_path: Path) -> None:
    """Of CPU: others may be at work here."""
    report = reports.h200_among_nights()
    began = time.process_time()
    html.write(tmp_path, report)
    assert time.process_time() - began < 3


@pytest.mark.slow
def test_a_report_of_six_servers_adds_less_than_three_seconds_to_a_session(tmp_path: Path) -> None:
    """Of CPU, its imports included, at the best of three times each."""
    sweep = ROOT / "perf/recordings/h200/2026-11-29-sweep"
    asked = ["perf/", "-k", "eagle3", "--perf-profile=h200-llama8b-shape", f"--perf-kept={sweep}"]
    without = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked]
    least = [min(_cpu_s(words) for _ in range(3)) for words in (without, [*without, f"--perf-report={tmp_path}"])]
    assert (tmp_path / "index.html").exists()
    assert least[1] - least[0] < 3


def _cpu_s(command: list[str]) -> float:
    process = subprocess.Popen(command, cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_the_readmes_picture_is_of_what_the_page_shows_now(tmp_path: Path) -> None:
    page = html.write(tmp_path, reports.h200()).read_text(encoding="utf-8")
    assert kept_picture.mark(PICTURE.read_bytes()) == kept_picture.shown(page), (
        "the page looks otherwise by now; take the picture anew, with a Chromium here: "
        "EAGLE3_KEEP_PICTURE=1 pytest tests/test_report_page.py -k picture"
    )


@pytest.mark.parametrize("other", [reports.full, reports.thin])
def test_another_page_is_told_from_it(tmp_path: Path, other: reports.Made) -> None:
    page = html.write(tmp_path, other()).read_text(encoding="utf-8")
    assert kept_picture.mark(PICTURE.read_bytes()) != kept_picture.shown(page)


def test_what_nccl_settings_gain_has_a_part_of_the_page_where_it_was_measured(tmp_path: Path) -> None:
    page = html.write(tmp_path, reports.full()).read_text(encoding="utf-8")
    assert '<section id="nccl"' in page
    assert '<a href="#nccl">What the NCCL settings gain</a>' in page
    assert "depth-3.untuned.json" in page
    assert '"#nccl"' not in html.write(tmp_path, reports.h200()).read_text(encoding="utf-8")


def test_the_same_page_with_another_style_is_told_from_it(tmp_path: Path) -> None:
    page = html.write(tmp_path, reports.h200()).read_text(encoding="utf-8")
    assert kept_picture.shown(page.replace("--first: #1f63b8", "--first: #ff0000")) != kept_picture.shown(page)


def test_a_mark_is_read_again_and_leaves_the_picture_a_picture() -> None:
    png = PICTURE.read_bytes()
    again = kept_picture.marked(png.replace(b"tEXtpage", b"tEXtpast"), "0" * 64)
    assert kept_picture.mark(again) == "0" * 64
    assert kept_picture.size(again) == kept_picture.size(png) == (1280, 920)

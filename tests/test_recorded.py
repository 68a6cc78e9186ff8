"""Recorded sweeps as tables: which files of a folder are told, and where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.report import recorded

ROOT = Path(__file__).resolve().parent.parent
H200 = ROOT / "perf/recordings/h200"
NIGHT = H200 / "2026-11-30-one-percent/01-none"


def test_a_folder_that_is_a_sweep_itself_is_told_as_those_below_it() -> None:
    sweep = H200 / "2026-11-30-fourth-gpu"
    assert list(recorded.recorded(sweep)) == [sweep.name]
    assert [m.depth for m in recorded.boots(sweep)] == [0, 2]


def test_phases_are_told_of_each_depth_and_not_of_what_it_was_compared_with(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    for name in ("depth-2.json", "depth-2.untuned.json", "depth-2.baseline.json"):
        shutil.copy(NIGHT / "depth-2.json", tmp_path / "night" / name)
    lines = recorded.phases_table(tmp_path).splitlines()
    assert lines[0] == "| night | steps | injected | draft | verify | extend | unexplained | total |"
    assert lines[2:] == ["| night | 2 | none | 0.324 | 5.317 | 0.392 | 0.031 | 6.065 |"]


def test_a_folder_with_nothing_to_tell_and_a_file_that_is_no_measurement_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no measurement"):
        recorded.main(tmp_path)
    with pytest.raises(SystemExit, match="missing: there is no such folder"):
        recorded.main(tmp_path / "missing")
    (tmp_path / "depth-2.json").write_bytes(b"\xff")
    with pytest.raises(SystemExit, match=r"depth-2\.json: .*decode"):
        recorded.main(tmp_path)
    (tmp_path / "depth-2.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"depth-2\.json: not a measurement"):
        recorded.main(tmp_path)
    with pytest.raises(SystemExit, match=r"depth-2\.json: is a file"):
        recorded.main(tmp_path / "depth-2.json")

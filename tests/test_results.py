"""The folder of a sweep: private, never overwritten, complete files only."""

from __future__ import annotations

import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE

import pytest

from fixtures import plan, profiles, results
from tests.kit.builders import measurement
from tests.kit.mounts import mounted
from tests.kit.scratch import ROOT

NOW = datetime(2026, 11, 29, 3, 15, tzinfo=UTC)


def test_a_fresh_folder_is_named_by_time_and_profile_and_private(tmp_path: Path) -> None:
    folder = results.fresh_folder(tmp_path, "cpu-tiny", NOW)
    assert folder == tmp_path / "20261129T031500-cpu-tiny"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_sweeps_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    first = results.fresh_folder(tmp_path, "p", NOW)
    assert results.fresh_folder(tmp_path, "p", NOW) == first.with_name(f"{first.name}-2")


def test_what_is_written_is_read_again_by_depth(tmp_path: Path) -> None:
    for depth in (10, 2, 0):
        results.write(tmp_path, measurement(depth))
    assert [m.depth for m in results.read(tmp_path)] == [0, 2, 10]
    assert list(results.read(tmp_path))[1] == measurement(2)


def test_files_are_private(tmp_path: Path) -> None:
    assert stat.S_IMODE(results.write(tmp_path, measurement(2)).stat().st_mode) == 0o600


def test_an_earlier_sweep_in_the_folder_is_moved_aside_whole(tmp_path: Path) -> None:
    results.write(tmp_path, measurement(2))
    (tmp_path / "depth-2.log").write_text("earlier")
    (tmp_path / "depth-3.refused.json").write_text("earlier")
    (tmp_path / "notes.txt").write_text("mine")
    results.prepare(tmp_path, NOW)
    (aside,) = tmp_path.glob("before-20261129T031500-*")
    assert sorted(p.name for p in aside.iterdir()) == ["depth-2.json", "depth-2.log", "depth-3.refused.json"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert list(results.read(tmp_path)) == []


def test_a_resumed_sweep_keeps_its_finished_depths_and_moves_the_rest_aside(tmp_path: Path) -> None:
    results.write(tmp_path, measurement(2))
    for name in ("depth-2.log", "depth-3.log", "depth-3.refused.json", "depth-20.log"):
        (tmp_path / name).write_text("earlier")
    results.prepare(tmp_path, NOW, keep={2})
    (aside,) = tmp_path.glob("before-20261129T031500-*")
    assert sorted(p.name for p in aside.iterdir()) == ["depth-20.log", "depth-3.log", "depth-3.refused.json"]
    assert sorted(p.name for p in tmp_path.glob("depth-*")) == ["depth-2.json", "depth-2.log"]


HOLD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from fixtures import results
results.prepare(Path(sys.argv[1]), datetime.now(UTC))
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_another_session_measures_into_is_left_as_it_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "night")], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        (tmp_path / "night" / "depth-0.log").write_text("lives")
        with pytest.raises(results.ResultsError, match="night: another session is measuring into it"):
            results.prepare(tmp_path / "night", NOW)
        assert (tmp_path / "night" / "depth-0.log").read_text() == "lives"
        other.kill()
    results.prepare(tmp_path / "night", NOW)
    results.prepare(tmp_path / "night", NOW)  # its own


def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(results.ResultsError, match=r"--perf-results .*taken: File exists"):
        results.prepare(tmp_path / "taken", NOW)


def test_a_write_that_fails_leaves_the_earlier_file_and_no_debris(tmp_path: Path) -> None:
    path = results.write_atomically(tmp_path / "a.json", "first")
    with pytest.raises(UnicodeEncodeError):
        results.write_atomically(path, "\ud800")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_told_before_a_boot(tmp_path: Path) -> None:
    with pytest.raises(results.ResultsError, match=r"gone takes no other measurement: No such file or directory\."):
        results.prove_room(tmp_path / "gone")


def test_a_full_disk_is_told_before_a_boot_and_keeps_its_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m") as disk:
        (disk / "log").write_bytes(b"last words")
        with pytest.raises(results.ResultsError, match=r"disk takes no other measurement: No space left on device\."):
            results.prove_room(disk)
        assert [path.name for path in disk.iterdir()] == ["log"]
        with pytest.raises(results.ResultsError, match=r"depth-2\.json can't be written: No space left on device\."):
            results.write_atomically(disk / "depth-2.json", "x" * results.ROOM)
        assert [path.name for path in disk.iterdir()] == ["log"]


def test_a_file_that_is_no_measurement_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "depth-2.json").write_text('{"schema": 1}')
    with pytest.raises(results.ResultsError, match=r"depth-2\.json: not a measurement: .*Remove the file"):
        list(results.read(tmp_path))


def test_the_last_sweep_of_a_profile_is_found_and_gives_the_time_to_expect(tmp_path: Path) -> None:
    for day, boot_s in (("20261128T000000-cpu-tiny", 20.0), ("20261129T000000-cpu-tiny", 13.0)):
        (tmp_path / day).mkdir()
        for depth in (0, 1, 2, 3, 5, 10):
            results.write(tmp_path / day, measurement(depth, seconds={"boot": boot_s, "measure": 17.0}))
    (tmp_path / "20261130T000000-cpu-tiny").mkdir()
    no_night = measurement(2, seconds={"boot": 99.0}, mark="the engine alone")
    results.write(tmp_path / "20261130T000000-cpu-tiny", no_night)
    last = plan.last_sweep(tmp_path, profiles.load("cpu-tiny"))
    assert {depth: m.seconds["boot"] for depth, m in last.items()} == dict.fromkeys((0, 1, 2, 3, 5, 10), 13.0)
    assert plan.last_sweep(tmp_path, profiles.load("h200-llama8b-shape")) == {}
    assert plan.seconds(last[2]) == 30.0

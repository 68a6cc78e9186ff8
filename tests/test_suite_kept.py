"""A sweep that was measured before, judged again: nothing boots, and the verdict is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures import choosing, opening
from fixtures.day import Day
from fixtures.rehearsal import Unasked as Options
from tests.kit.suite import Suite

H200 = Path(__file__).resolve().parent.parent / "perf/recordings/h200"
SWEEP = H200 / "2026-11-29-sweep"


@pytest.mark.faults
def test_a_kept_sweep_is_judged_without_booting_and_can_be_accepted_after_all(suite: Suite) -> None:
    suite.profile(1, 2, passes=2)
    first = suite.run("-k", "eagle3")
    assert (first.status, first.booted) == (0, [0, 1, 2])
    kept = suite.results.rename(suite.folder / "elsewhere")
    before = {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}
    again = suite.run("-k", "eagle3", f"--perf-kept={kept}", "--perf-accept=measured elsewhere")
    assert (again.status, again.booted[3:]) == (0, []), again.output
    assert again.lines(f"Judged again: {kept}, measured ", "Nothing was booted.")
    assert again.lines("Accepted as ")
    assert not again.lines("Time ")
    assert {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()} == before


def opened(folder: Path, **options: object) -> Day:
    asked = {"perf_profile": "h200-llama8b-shape", "perf_wait": 1.0, "perf_kept": folder, **options}
    return opening.open_day(Options(**asked), boots=True)


def test_only_the_depths_that_are_kept_are_judged_and_the_host_is_theirs() -> None:
    day = opened(H200 / "2026-11-29-other-gpu")
    assert (day.profile.depths, day.depths_left_out) == ((2,), (1, 3, 5, 10))
    assert day.machine["gpu"] == "NVIDIA H200"
    assert [m.depth for m in day.taken_over] == [0, 2]


@pytest.mark.parametrize("option", choosing.ONLY_MEASURING)
def test_an_option_that_asks_for_measuring_is_refused_beside_it(option: str) -> None:
    given = (
        ["2=http://127.0.0.1:1"] if option == "--perf-server" else "slow-verify" if option == "--perf-drill" else "x"
    )
    with pytest.raises(opening.NotReady, match=f"judges what was measured before; leave {option} out"):
        opened(SWEEP, **{option[2:].replace("-", "_"): given})


@pytest.mark.parametrize(
    ("folder", "options", "why"),
    [
        (H200, {}, "a sweep has depth-0.json"),
        (H200 / "2026-11-29-other-gpu", {"perf_depths": "3"}, "a sweep has depth-0.json"),
        (
            SWEEP,
            {"perf_profile": "h200-llama8b-streams"},
            "measured with the profile h200-llama8b-shape; name that one",
        ),
    ],
)
def test_what_is_no_sweep_of_this_profile_is_refused(folder: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(opening.NotReady, match=why):
        opened(folder, **options)


def test_a_folder_that_is_not_there_and_a_file_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, what in (("nope", "there is no such folder"), ("file", "is a file")):
        with pytest.raises(opening.NotReady, match=f"^--perf-kept {tmp_path}/{name}: {what}; give the folder of a"):
            opened(tmp_path / name)


def written(folder: Path, *depths: int, **changes: object) -> Path:
    """The first sweep's plain server and 2 steps, or so many depths, changed alike."""
    for depth in depths or (0, 2):
        told = json.loads((SWEEP / f"depth-{depth}.json").read_text(encoding="utf-8"))
        (folder / f"depth-{depth}.json").write_text(json.dumps({**told, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({"draft": "candidate"}, {}, "measured with the draft candidate; name it"),
        ({"simulated": 2.05}, {}, "acceptance was simulated"),
        ({"identity": {"workload": {"max_tokens": 64}}}, {}, "workload"),
        ({"host": {"client": {}}}, {"perf_accept": "why"}, "no reference; leave --perf-accept out"),
        ({"depth": 7}, {}, "a file says another depth than its name"),
        ({"schema": 99}, {}, r"depth-0\.json: "),
    ],
    ids=["draft", "simulated", "workload", "attached", "depth", "unreadable"],
)
def test_what_can_not_be_judged_with_the_profile_is_refused(
    tmp_path: Path, changes: dict[str, object], options: dict[str, str], why: str
) -> None:
    with pytest.raises(opening.NotReady, match=why):
        opened(written(tmp_path, 0, 1, 2, 3, 5, 10, **changes), **options)


@pytest.mark.parametrize("name", ["depth-2.json", "depth-2.baseline.json"])
def test_a_file_that_was_cut_off_is_to_be_fetched_again_since_nothing_is_measured(tmp_path: Path, name: str) -> None:
    whole = written(tmp_path) / "depth-2.json"
    (tmp_path / name).write_text(whole.read_text()[:2000])
    with pytest.raises(opening.NotReady) as refused:
        opened(tmp_path)
    assert str(refused.value).startswith(f"--perf-kept {tmp_path}: {tmp_path}/{name}: ")
    assert "Nothing is measured here: fetch the file again" in str(refused.value)
    assert "measure that depth anew" not in str(refused.value)


def test_a_depth_that_is_asked_for_and_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(opening.NotReady, match=r"has no depth-N\.json of 3"):
        opened(written(tmp_path), perf_depths="2,3")


def test_nothing_of_this_hosts_nights_is_known_or_kept(tmp_path: Path) -> None:
    (tmp_path / "h200-llama8b-shape.nights.json").write_text("not to be read")
    day = opened(written(tmp_path))
    assert day.judging.earlier == {}
    assert day.judging.remember() is None
    assert (tmp_path / "h200-llama8b-shape.nights.json").read_text() == "not to be read"


def test_a_drills_measurements_stay_a_drills(tmp_path: Path) -> None:
    assert opened(written(tmp_path, mark="a drill, slow-verify=15%")).mark == "a drill, slow-verify=15%"

"""What one night tells the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import nights
from fixtures.analysis.intervals import Outcome
from fixtures.analysis.verdicts import Verdict, fails

HOLDS, FALLS_SHORT, UNDECIDED = Outcome.HOLDS, Outcome.FALLS_SHORT, Outcome.UNDECIDED


def verdict(outcome: Outcome, quantity: str = "throughput", depth: int = 2) -> Verdict:
    return Verdict(quantity, depth, outcome, 1.0, 0.9, 1.1, 1.0, 24, "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "nights-cpu-tiny.json"


def lived(path: Path, *outcomes: Outcome) -> dict[str, nights.Memory]:
    for day, outcome in enumerate(outcomes, start=1):
        nights.remember(path, [verdict(outcome)], f"2026-11-{day:02d}")
    return nights.read(path)


def test_the_third_undecided_night_in_a_row_fails(path: Path) -> None:
    memories = lived(path, UNDECIDED, UNDECIDED)
    third = nights.undecided_nights(memories, verdict(UNDECIDED), "2026-11-03")
    assert third == 3
    assert fails(verdict(UNDECIDED), nights=third)


def test_a_night_that_was_decided_begins_the_count_anew(path: Path) -> None:
    assert nights.undecided_nights(lived(path, UNDECIDED, HOLDS), verdict(UNDECIDED), "2026-11-03") == 1
    assert nights.undecided_nights(lived(path, UNDECIDED, FALLS_SHORT), verdict(UNDECIDED), "2026-11-04") == 1


def test_trying_again_on_the_same_day_is_no_further_night(path: Path) -> None:
    memories = lived(path, UNDECIDED)
    assert nights.undecided_nights(memories, verdict(UNDECIDED), "2026-11-01") == 1


def test_each_quantity_and_depth_has_a_memory_of_its_own(path: Path) -> None:
    memories = lived(path, UNDECIDED)
    assert nights.undecided_nights(memories, verdict(UNDECIDED, depth=3), "2026-11-02") == 1
    assert nights.undecided_nights(memories, verdict(UNDECIDED, "cycle time"), "2026-11-02") == 1


def test_what_falls_short_says_when_it_last_held(path: Path) -> None:
    memories = lived(path, HOLDS, FALLS_SHORT)
    assert nights.since(memories, verdict(FALLS_SHORT), "2026-11-03") == "It last held on 2026-11-01."
    assert nights.since({}, verdict(FALLS_SHORT), "2026-11-03") == "It isn't known to have held here before."
    assert nights.since(memories, verdict(HOLDS), "2026-11-03") == ""


def test_what_is_undecided_says_for_how_long(path: Path) -> None:
    memories = lived(path, HOLDS, UNDECIDED)
    assert nights.since(memories, verdict(UNDECIDED), "2026-11-03") == (
        "It last held on 2026-11-01. Undecided nights in a row: 2."
    )


def test_quantities_that_were_not_judged_stay_as_they_were(path: Path) -> None:
    lived(path, UNDECIDED)
    nights.remember(path, [verdict(HOLDS, depth=5)], "2026-11-02")
    assert nights.read(path)["throughput at 2"] == nights.Memory(1, "2026-11-01", "")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"throughput at 2": {}}', '{"throughput at 2": 3}'])
def test_a_broken_memory_is_none(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert nights.read(path) == {}


@pytest.mark.parametrize(
    ("text", "why"), [('{"throughput at', "not JSON: "), ("[]", "not what nights are remembered by")]
)
def test_a_broken_memory_is_kept_beside_and_said(path: Path, text: str, why: str) -> None:
    path.parent.mkdir()
    for name in ("broken-2026-11-03", "broken-2026-11-03-2"):
        path.write_text(text)
        told = nights.remember(path, [verdict(UNDECIDED)], "2026-11-03")
        assert told is not None
        assert told.startswith(f"{path} could not be read ({why}")
        assert f"The file is kept as {path.name}.{name}; " in told
        assert path.with_name(f"{path.name}.{name}").read_text() == text
        assert nights.read(path) == {"throughput at 2": nights.Memory(1, "2026-11-03", "")}
    assert nights.remember(path, [verdict(UNDECIDED)], "2026-11-04") is None


def test_a_broken_memory_stays_where_it_is_while_no_other_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("full")

    path.parent.mkdir()
    path.write_text("{")
    monkeypatch.setattr(nights.results, "replace_whole", full)
    with pytest.raises(OSError, match="full"):
        nights.remember(path, [verdict(UNDECIDED)], "2026-11-03")
    assert [each.read_text() for each in path.parent.iterdir()] == ["{"]

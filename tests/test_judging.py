"""What a verdict means tonight: nights before it, conditions around it, and how far a night looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures import against, nights, profiles, references
from fixtures.analysis.checks import Check, Finding
from fixtures.analysis.gate import floor_rule, looks
from fixtures.analysis.intervals import Outcome, Step
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.reference import Accepted, of_sweep
from fixtures.analysis.regressions import CYCLE_TIME, NCCL_SETTINGS, Tonight
from fixtures.analysis.verdicts import Verdict
from fixtures.judging import Judging
from fixtures.nights import Memory
from fixtures.profiles import Floors, numbers
from fixtures.references import NoReference
from tests.kit.builders import measurement, sample, slowed
from tests.kit.mounts import mounted

TINY = profiles.load("cpu-tiny")
PROFILE = TINY.model_copy(update={"workload": TINY.workload.model_copy(update={"looks_until": 10})})
"""The smoke on the CPU looks once; a night on a GPU host looks on."""
ADA = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")


def judging(folder: Path, **how: object) -> Judging:
    given = {"profile": PROFILE, "depths_left_out": (), "day": "2026-11-05", **how}
    return Judging(place=folder / "small.json", memory=folder / "nights.json", **given)  # type: ignore[arg-type]


def verdict(outcome: Outcome, quantity: str = "throughput") -> Verdict:
    return Verdict(quantity, 2, outcome, 0.9, 0.8, 1.1, 1.0, 24, "The paragraph.")


# Nights before


@pytest.mark.parametrize(("before", "fails"), [(0, False), (1, False), (2, True), (5, True)])
def test_the_third_undecided_night_in_a_row_fails(tmp_path: Path, before: int, fails: bool) -> None:
    night = judging(tmp_path)
    night.memory.write_text(f'{{"throughput at 2": {{"undecided": {before}, "judged": "2026-11-04", "held": ""}}}}')
    judged = night.judged(verdict(Outcome.UNDECIDED))
    assert judged.fails is fails
    assert judged.text.endswith(f"Undecided nights in a row: {before + 1}.")


def test_an_undecided_floor_fails_at_once_where_the_profile_says_so(tmp_path: Path) -> None:
    strict = PROFILE.model_copy(update={"floors": PROFILE.floors.model_copy(update={"undecided": "fail"})})
    assert judging(tmp_path, profile=strict).judged(verdict(Outcome.UNDECIDED)).fails


def test_what_is_judged_is_remembered_once_a_day(tmp_path: Path) -> None:
    for day, undecided in (("2026-11-04", 1), ("2026-11-05", 2), ("2026-11-05", 2)):
        night = judging(tmp_path, day=day)
        night.judged(verdict(Outcome.UNDECIDED))
        assert night.remember() is None
        assert nights.read(night.memory) == {"throughput at 2": Memory(undecided, day, "")}


def test_a_memory_that_can_not_be_written_is_said_and_fails_nothing(tmp_path: Path) -> None:
    night = judging(tmp_path)
    night.memory = Path("/proc/nights.json")
    assert night.remember() == (
        "/proc/nights.json can't be written: No such file or directory. The next night won't know of this one."
    )


def test_a_broken_memory_is_said_once_the_night_is_remembered(tmp_path: Path) -> None:
    night = judging(tmp_path)
    night.memory.write_text("{")
    night.judged(verdict(Outcome.UNDECIDED))
    assert (night.remember() or "").startswith(f"{night.memory} could not be read (not JSON: ")
    assert night.remember() is None


def test_a_memory_on_a_full_disk_is_said_in_one_sentence_with_its_path_once(tmp_path: Path) -> None:
    night = judging(tmp_path)
    night.judged(verdict(Outcome.HOLDS))
    with mounted(tmp_path / "disk", "size=64k") as disk:
        (disk / "log").write_bytes(bytes(64 * 1024))
        night.memory = disk / "nights.json"
        assert night.remember() == (
            f"{disk}/nights.json can't be written: No space left on device. The next night won't know of this one."
        )


# Conditions


def test_a_check_that_did_not_pass_makes_falling_short_undecided_and_says_why(tmp_path: Path) -> None:
    noisy = Finding(Check.NOISY_HOST, "The scheduler waited.", "It matters.", "Look.")
    judged = judging(tmp_path).judged(verdict(Outcome.FALLS_SHORT), [noisy])
    assert (judged.verdict.outcome, judged.fails) == (Outcome.UNDECIDED, False)
    assert "Undecided all the same, since a check did not pass. noisy-host: The scheduler waited." in judged.text


# How far a night looks


def test_looks_are_the_studys_up_to_the_last_pass() -> None:
    assert looks(10) == (2, 4, 10)
    assert looks(4) == (2, 4)
    assert looks(1) == (1,)
    assert floor_rule(1, 10).looks == (1, 2, 4, 10)
    assert floor_rule(3, 10).looks == (3, 4, 10)
    assert floor_rule(12, 10).looks == (12,)


def night_of(depth: int, *, passes: int, factor: float = 1.0) -> Measurement:
    count = 50 if depth else 100
    samples = tuple(
        sample(f"p{n}", repeat=k, verifies=count, decode_s=count * 0.01 * (1 + 0.001 * ((n + k) % 3)))
        for k in range(passes)
        for n in range(24)
    )
    return slowed(measurement(depth, samples), factor)


def tonight(depth: int, *, passes: int, factor: float = 1.0, boots: int = 1) -> Tonight:
    seen = replace(night_of(depth, passes=passes, factor=factor), boots=tuple(range(boots)))
    return Tonight(seen, night_of(0, passes=passes), passes=passes, boots=boots)


def with_reference(folder: Path, boots: int = 1) -> Judging:
    against = PROFILE.reference.model_copy(update={"believed_after_boots": boots})
    reference = of_sweep({d: night_of(d, passes=10) for d in (0, 2)}, ADA)
    return judging(folder, profile=PROFILE.model_copy(update={"reference": against}), reference=reference)


def test_without_a_reference_a_clear_floor_stops_after_the_first_pass(tmp_path: Path) -> None:
    assert judging(tmp_path).step(tonight(2, passes=1)) is Step.STOP


def test_a_reference_asks_for_the_first_look_of_the_study(tmp_path: Path) -> None:
    night = with_reference(tmp_path)
    assert night.step(tonight(2, passes=1)) is Step.ANOTHER_PASS
    assert night.step(tonight(2, passes=2)) is Step.STOP


def test_slower_than_the_reference_asks_for_another_boot_as_often_as_the_profile_says(tmp_path: Path) -> None:
    night = with_reference(tmp_path, boots=2)
    assert night.step(tonight(2, passes=2, factor=1.1)) is Step.ANOTHER_BOOT
    assert night.step(tonight(2, passes=2, factor=1.1, boots=2)) is Step.STOP


def test_a_regression_tells_the_likely_side(tmp_path: Path) -> None:
    night = with_reference(tmp_path)
    slow = {0: tonight(0, passes=2), 2: tonight(2, passes=2, factor=1.1)}
    gate = night.gate(slow[0].measurement)
    assert gate
    judged = night.judged(gate.cycle_time(slow[2]), why=lambda depth: night.likely_side(depth, slow))
    assert judged.fails
    assert judged.verdict.quantity == CYCLE_TIME
    assert "+10.0 %" in judged.text
    assert "2 steps lost 9.1 %" in judged.text
    assert "accept length unchanged" in judged.text


# Floors by rule

RULES_AT_3 = {"throughput": {3: "97 % of reference"}, "accept_length": {3: "99 % of reference"}}


def by_rule(night: Judging) -> Judging:
    """The same night, with floors at 2 steps that are shares of the reference."""
    table = {
        "throughput": {2: "97 % of reference"},
        "accept_length": {2: "99 % of reference"},
        "cycle_cost": {2: "103 % of reference"},
    }
    night.profile = night.profile.model_copy(update={"floors": Floors.model_validate(table)})
    return night


def test_a_floor_by_rule_is_a_share_of_what_the_reference_has(tmp_path: Path) -> None:
    # 50 verifies of 2 tokens, each as long as a plain token: 2 × the plain server's.
    floors = by_rule(with_reference(tmp_path)).floors(night_of(0, passes=1))
    assert floors.throughput == {2: pytest.approx(1.94, rel=0.001)}
    assert floors.accept_length == {2: pytest.approx(1.98)}
    assert floors.cycle_cost == {2: pytest.approx(1.03, rel=0.001)}


def test_without_a_reference_that_fits_a_rule_stays_one(tmp_path: Path) -> None:
    night, other = by_rule(with_reference(tmp_path)), replace(night_of(0, passes=1), identity={"target": "another"})
    assert numbers(night.floors(other).throughput) == {}
    assert numbers(by_rule(judging(tmp_path)).floors(night_of(0, passes=1)).throughput) == {}


def test_a_rule_at_a_depth_that_the_reference_lacks_says_so_and_what_to_do(tmp_path: Path) -> None:
    night, deeper = by_rule(with_reference(tmp_path)), night_of(3, passes=1)
    assert night.gate(deeper)
    assert night.no_gate(deeper) == ""
    assert night.no_figure(deeper) == (
        f"{night.place} has nothing at 3 steps, so it is a share of nothing: accept a sweep of all depths "
        '(--perf-accept "why"), or state the floor as a number'
    )
    other = replace(deeper, identity={"target": "another"})
    assert night.no_figure(other) == night.no_gate(other) != ""
    assert by_rule(judging(tmp_path)).no_figure(deeper).startswith(f"{night.place} isn't there yet")


def test_the_skip_of_such_a_floor_has_that_sentence(tmp_path: Path) -> None:
    night, deeper = by_rule(with_reference(tmp_path)), night_of(3, passes=1)
    night.profile = night.profile.model_copy(update={"floors": Floors.model_validate(RULES_AT_3)})
    day = SimpleNamespace(judging=night, floored=night.profile)
    stated = against.floor.__wrapped__(day, deeper)
    with pytest.raises(pytest.skip.Exception, match=r"3 is 97 % of reference, and .* has nothing at 3 steps"):
        stated("throughput")


def test_a_ceiling_that_noise_leaves_open_asks_for_another_pass(tmp_path: Path) -> None:
    night = judging(tmp_path)
    floors = night.profile.floors.model_copy(update={"cycle_cost": {2: 1.0}})
    night.profile = night.profile.model_copy(update={"floors": floors})
    assert night.step(tonight(2, passes=1)) is Step.ANOTHER_PASS


def test_what_falls_short_by_rule_says_so_and_is_no_obstacle_to_another_reference(tmp_path: Path) -> None:
    night = by_rule(judging(tmp_path))
    judged = night.judged(verdict(Outcome.FALLS_SHORT))
    assert judged.fails
    assert judged.about_reference
    assert "It was to be 97 % of reference." in judged.text
    measured = {d: night_of(d, passes=2) for d in (0, 2)}
    night.profile = night.profile.narrowed([2])
    night.judged(verdict(Outcome.HOLDS, "text"))
    night.accept(measured, ADA, alternated={}, failed=(), findings={})
    assert night.place.exists()


def test_whether_nccl_settings_gain_is_no_obstacle_to_another_reference(tmp_path: Path) -> None:
    night = by_rule(judging(tmp_path))
    night.profile = night.profile.narrowed([2])
    for each in (verdict(Outcome.UNDECIDED, NCCL_SETTINGS), verdict(Outcome.HOLDS, "text")):
        night.judged(each)
    night.accept({d: night_of(d, passes=2) for d in (0, 2)}, ADA, alternated={}, failed=(), findings={})
    assert night.place.exists()


def test_what_would_make_a_fall_doubtful_is_no_reference(tmp_path: Path) -> None:
    night = by_rule(judging(tmp_path))
    night.profile = night.profile.narrowed([2])
    night.judged(verdict(Outcome.HOLDS, "text"))
    measured = {d: night_of(d, passes=2) for d in (0, 2)}
    slow, uneven = (Finding(check, "", "", "") for check in (Check.CLOCKS_THROTTLED, Check.UNSTEADY))
    with pytest.raises(NoReference, match=r"is left as it was: clocks-throttled at 2 steps\.$"):
        night.accept(measured, ADA, alternated={}, failed=(), findings={0: (), 2: (slow, uneven)})
    night.accept(measured, ADA, alternated={}, failed=(), findings={2: (uneven,)})


def test_what_became_better_is_offered_unless_a_test_failed(tmp_path: Path) -> None:
    night = with_reference(tmp_path)
    night.judged(Verdict(CYCLE_TIME, 2, Outcome.HOLDS, 1.2, 1.1, 1.3, 1.0, 24, "The paragraph."))
    offered = [line for line in night.remarks(night_of(0, passes=1)) if "Better than the reference" in line]
    assert len(offered) == 1
    assert [*night.remarks(night_of(0, passes=1), failed=True)] == []


# Where references lie


def test_references_lie_beside_the_folder_of_profiles_or_beside_the_profile(tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    assert references.folder_for(perf / "profiles" / "a.toml") == perf / "references"
    assert references.folder_for(perf / "profiles" / "controls" / "a.toml") == perf / "references"
    assert references.folder_for(tmp_path / "a.toml") == tmp_path / "references"

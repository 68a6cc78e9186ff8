"""References: what goes with them, when they fit, and that they are written on purpose only."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import references
from fixtures.analysis import regressions
from fixtures.analysis.counts import Counts
from fixtures.analysis.facts import Comparison, compare, context, flags, key
from fixtures.analysis.intervals import Outcome
from fixtures.analysis.measurement import Measurement, Refusal
from fixtures.analysis.reference import Accepted, Reference, from_json, of_sweep, to_json
from fixtures.analysis.verdicts import Verdict
from fixtures.references import NoReference
from tests.kit.builders import measurement, sample

ADA = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")
BOB = Accepted("bob", "2026-12-01T03:00:00+00:00", "new kernels")

CPU_HOST = {"cpu": "Xeon", "cores": 2, "kernel": "6.1", "load_1min": 0.4, "host": "ci-7"}
GPU_HOST = {
    "cpu": "Xeon",
    "cores": 16,
    "gpu": "NVIDIA H200",
    "driver": "570.1",
    "accelerators": [
        {
            "uuid": "GPU-1",
            "serial": "165",
            "memory_free": 7,
            "state": {"sm_clock_mhz": 1980, "sm_clock_max_mhz": 1980, "power_w": 300.0, "power_limit_w": 700.0},
        }
    ],
}
IDENTITY = {
    "target": "aa",
    "draft": "bb",
    "prompts": "cc",
    "dtype": "float32",
    "workload": {"max_tokens": 128},
    "accelerators": 0,
}


def night(depth: int, *, passes: int = 2, cycle_s: float = 0.010, verifies: int = 50, **facts: Any) -> Measurement:
    count = verifies if depth else 100
    samples = tuple(
        sample(f"p{n}", repeat=k, verifies=count, decode_s=count * cycle_s) for k in range(passes) for n in range(3)
    )
    given = {"host": CPU_HOST, "identity": IDENTITY, "started_at": "2026-11-02T03:00:00+00:00", **facts}
    return measurement(depth, samples, **given)


def sweep(**how: Any) -> dict[int, Measurement]:
    return {depth: night(depth, **how) for depth in (0, 1, 2)}


def verdict(quantity: str, outcome: Outcome = Outcome.HOLDS, *, depth: int = 2, lower: float = 0.99) -> Verdict:
    return Verdict(quantity, depth, outcome, 1.0, lower, 1.01, 1.0, 24, "")


KEPT = [verdict(q) for q in sorted(regressions.AGAINST_REFERENCE)]
FLOORS = [verdict("throughput"), verdict("accept length"), verdict("text")]


def accept(path: Path, accepted: Accepted = ADA, *, verdicts: list[Verdict] | None = None, **how: Any) -> Reference:
    measured = sweep(**{"started_at": accepted.when, **how})  # what is accepted was measured just before
    return references.accept(path, measured, accepted, depths=(1, 2), verdicts=FLOORS if verdicts is None else verdicts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return references.place(tmp_path / "references", "cpu-tiny")


# Key and context


def test_the_key_has_what_figures_mean_and_the_context_what_may_explain_them() -> None:
    assert key(night(2)) == {
        "target": "aa",
        "prompts": "cc",
        "dtype": "float32",
        "workload": {"max_tokens": 128},
        "accelerators": 0,
        "instrumented": False,
        "host": {"cpu": "Xeon", "cores": 2},
    }
    assert context(night(2))["draft"] == "bb"
    assert context(night(2))["sglang"] == "0.5.23"
    assert context(night(2))["host"] == {"host": "ci-7", "kernel": "6.1"}


def test_on_gpus_their_model_and_number_are_in_the_key_and_their_serials_in_the_context() -> None:
    on_gpu = night(2, host=GPU_HOST, identity={**IDENTITY, "accelerators": 1})
    assert key(on_gpu)["host"] == {"gpu": "NVIDIA H200"}
    assert key(on_gpu)["accelerators"] == 1
    assert context(on_gpu)["host"] == {"driver": "570.1"}
    assert context(on_gpu)["accelerators"] == [
        {"uuid": "GPU-1", "serial": "165", "sm_clock_max_mhz": 1980, "power_limit_w": 700.0}
    ]


def test_the_hosts_facts_of_whoever_asks_are_not_taken_for_the_servers() -> None:
    asked_from_here = night(2, host={"client": CPU_HOST})
    assert key(asked_from_here)["host"] == {"cpu": None, "cores": None}
    then = of_sweep(sweep(), ADA)
    assert any(line.startswith("host.cpu: ") for line in compare(then.key, then.context, asked_from_here).incomparable)


def test_flags_are_told_apart_and_those_that_mean_nothing_are_left_out() -> None:
    argv = ("python", "-m", "serve", "--port", "31000", "--dtype", "float32", "--lora-paths", "a", "b", "--quiet")
    assert flags(argv) == {"--dtype": "float32", "--lora-paths": "a b", "--quiet": ""}


def compared(**tonight: Any) -> Comparison:
    then = night(2)
    return compare(key(then), context(then), night(2, **tonight))


def test_the_same_night_differs_in_nothing() -> None:
    assert compared() == Comparison((), ())


@pytest.mark.parametrize("changed", ["target", "prompts", "dtype", "workload", "accelerators"])
def test_another_value_in_the_key_makes_figures_incomparable(changed: str, path: Path) -> None:
    comparison = compared(identity={**IDENTITY, changed: "other"})
    refusal = references.incomparable(path, comparison)
    assert refusal is not None
    assert "is not compared with tonight, since the figures mean different things" in refusal
    assert changed in refusal


def test_another_cpu_is_named_with_both_values() -> None:
    assert compared(host={**CPU_HOST, "cpu": "EPYC"}).incomparable == ("host.cpu: 'Xeon' → 'EPYC'",)


def test_another_draft_version_or_kernel_is_context_and_compared_on_purpose(path: Path) -> None:
    comparison = compared(identity={**IDENTITY, "draft": "new"}, host={**CPU_HOST, "kernel": "6.2"})
    assert comparison == Comparison((), ("draft: 'bb' → 'new'", "host.kernel: '6.1' → '6.2'"))
    assert references.incomparable(path, comparison) is None


# On disk


def test_a_profile_without_a_reference_has_none(path: Path) -> None:
    assert references.read(path) is None


def test_what_was_accepted_is_read_back(path: Path) -> None:
    written = accept(path)
    assert references.read(path) == from_json(to_json(written))
    assert written.accepted == ADA
    assert written.depths[2].verifies == {"p0": (50,), "p1": (50,), "p2": (50,)}
    assert written.depths[2].costs["p0"] == pytest.approx((1.0, 1.0))
    assert written.depths[0].costs == {}


def test_where_servers_alternated_costs_are_those_of_neighbours() -> None:
    alternated = {2: night(0, cycle_s=0.005)}
    depths = of_sweep(sweep(), ADA, alternated).depths
    assert depths[2].costs["p0"] == pytest.approx((2.0, 2.0))
    assert depths[1].costs["p0"] == pytest.approx((1.0, 1.0))


def test_a_list_of_figures_takes_one_line(path: Path) -> None:
    accept(path)
    assert '"p0": [ 0.01, 0.01 ],' in path.read_text()
    assert json.loads(path.read_text())["schema"] == 1


def test_figures_keep_six_digits() -> None:
    text = to_json(of_sweep(sweep(cycle_s=0.0123456789), ADA))
    assert "0.0123457" in text
    assert "0.012345678" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a reference: JSONDecodeError"),
        ("[]", "not a reference: TypeError"),
        ("{}", "not a reference: KeyError: 'schema'"),
        ('{"schema": 2}', "its schema is not 1, which this version reads"),
        ('{"schema": 1, "profile": "x"}', "not a reference: KeyError: 'accepted'"),
    ],
    ids=["empty", "list", "bare", "newer", "cut"],
)
def test_a_file_that_is_no_reference_is_refused_with_its_path_and_what_to_do(path: Path, text: str, said: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(NoReference) as refused:
        references.read(path)
    assert str(refused.value).startswith(f"{path}: {said}")
    assert "restore it from version control" in str(refused.value)


def test_each_boot_of_a_night_tells_how_far_boots_lie_apart() -> None:
    measured = sweep(passes=4)
    slower = tuple(replace(s, decode_s=s.decode_s * (1.02 if s.repeat >= 2 else 1.0)) for s in measured[2].samples)
    measured[2] = replace(measured[2], samples=slower, boots=(0, 2))
    boots = of_sweep(measured, ADA).depths[2].boots
    assert [(len(boot.cycles["p0"]), boot.day) for boot in boots] == [(2, "2026-11-02"), (2, "2026-11-02")]
    apart = of_sweep(measured, ADA).depths[2].spread(alternating=False)
    # ln 1.02 between two boots of one day: a standard deviation of that over √2.
    assert (apart.boots, apart.days, apart.boot) == (2, 1, pytest.approx(0.0198 / 2**0.5, rel=0.01))


# Counts that move


def moving() -> dict[int, Measurement]:
    """Of 3 prompts at 2 steps: one steady, one whose verifies move, one whose tokens move with them."""
    counts = {"p0": [(101, 50)] * 4, "p1": [(101, 60), *[(101, 45)] * 3], "p2": [(101, 25), *[(41, 20)] * 3]}
    samples = tuple(
        sample(p, repeat=k, tokens=tokens, verifies=verifies)
        for p, passes in counts.items()
        for k, (tokens, verifies) in enumerate(passes)
    )
    return {**sweep(passes=4), 2: replace(night(2), samples=samples)}


def test_a_reference_has_the_accept_length_of_the_measurement_that_it_was_made_from() -> None:
    measured = moving()
    kept = from_json(to_json(of_sweep(measured, ADA)))
    assert kept.depths[2].accept_length == measured[2].accept_length
    assert kept.depths[2].accept_lengths == {"p0": 2.0, "p1": 400 / 195, "p2": 220 / 85}
    assert kept.depths[2].throughput == kept.depths[2].accept_length / kept.depths[2].cycle_cost


def test_counts_are_kept_one_by_one_only_where_they_move() -> None:
    kept = of_sweep(moving(), ADA).depths
    assert kept[0].by_sample == kept[1].by_sample == {}
    assert kept[2].by_sample == {
        "p1": Counts((101,) * 4, (60, 45, 45, 45)),
        "p2": Counts((101, 41, 41, 41), (25, 20, 20, 20)),
    }
    assert kept[2].verifies == {"p0": (50,), "p1": (45, 60), "p2": (20, 25)}


def test_an_older_reference_reads_as_it_did() -> None:
    raw = json.loads(to_json(of_sweep(moving(), ADA)))
    for depth in raw["depths"].values():
        del depth["by_sample"]
    older = from_json(json.dumps(raw)).depths[2]
    assert older.accept_lengths == {"p0": 2.0, "p1": 100 / 52.5, "p2": 100 / 22.5}
    assert older.accept_length == 300 / 125
    assert [p for p, counts in older.counts.items() if counts.rough] == ["p1", "p2"]


# Accepting


def refusal(path: Path, **how: Any) -> str:
    with pytest.raises(NoReference) as refused:
        accept(path, **how)
    return str(refused.value)


@pytest.mark.parametrize("outcome", [Outcome.FALLS_SHORT, Outcome.UNDECIDED])
def test_a_sweep_with_a_floor_that_did_not_hold_is_not_accepted(path: Path, outcome: Outcome) -> None:
    said = refusal(path, verdicts=[*FLOORS, verdict("throughput", outcome, depth=1)])
    assert "is left as it was: throughput at 1 step " in said
    assert not path.exists()


def test_a_sweep_that_fell_short_of_the_reference_alone_may_be_accepted(path: Path) -> None:
    accept(path)
    slower = [*FLOORS, verdict(regressions.CYCLE_TIME, Outcome.FALLS_SHORT)]
    assert accept(path, BOB, verdicts=slower, cycle_s=0.011).accepted == BOB


def test_a_reference_is_of_all_depths(path: Path) -> None:
    measured = sweep()
    del measured[2]
    with pytest.raises(NoReference, match="not measured: 2 steps; a reference is of all depths"):
        references.accept(path, measured, ADA, depths=(1, 2), verdicts=FLOORS)


def test_one_pass_is_not_enough(path: Path) -> None:
    assert "2 steps has 1 passes and 2 are the least" in refusal(path, passes=1)


def test_a_reference_is_of_all_prompts(path: Path) -> None:
    """Floors by rule are shares of all that it has, and no later night would miss what it never had."""
    refusals = (Refusal("p9", 0, "HTTP 503"), Refusal("p9", 1, "HTTP 503"))
    said = refusal(path, refusals=refusals)
    for depth in ("no speculation", "1 step", "2 steps"):
        assert f"every completion of 1 prompt was refused at {depth} (p9); a reference is of all prompts" in said


def test_a_prompt_that_was_refused_in_one_pass_is_no_obstacle(path: Path) -> None:
    assert accept(path, refusals=(Refusal("p1", 2, "HTTP 503"),))


def test_an_acceptance_without_a_reason_is_refused(path: Path) -> None:
    assert "say why you accept it" in refusal(path, accepted=replace(ADA, why=" "))


def test_what_is_no_night_never_becomes_a_reference(path: Path) -> None:
    assert "it is no night: the engine alone" in refusal(path, mark="the engine alone")
    assert not path.exists()


def test_all_that_speaks_against_it_is_said_at_once(path: Path) -> None:
    said = refusal(path, accepted=replace(ADA, why=""), passes=1, verdicts=[verdict("text", Outcome.FALLS_SHORT)])
    assert said.count(";") == 4


def test_a_refused_sweep_leaves_the_file_byte_for_byte(path: Path) -> None:
    accept(path)
    before = path.read_bytes()
    refusal(path, verdicts=[verdict("text", Outcome.FALLS_SHORT)])
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_file_and_says_how_to_accept_the_sweep_later(path: Path) -> None:
    accept(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(NoReference, match=r"cpu-tiny\.json can't be written: File too large\. .* --perf-kept\."):
            accept(path, BOB, cycle_s=0.02)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_nothing_but_the_reference_is_left_in_its_folder(path: Path) -> None:
    accept(path)
    accept(path, BOB, cycle_s=0.02)
    assert [p.name for p in path.parent.iterdir()] == ["cpu-tiny.json"]


def test_the_earlier_reference_is_kept_with_who_when_and_why(path: Path) -> None:
    accept(path)
    accept(path, BOB, cycle_s=0.02)
    third = accept(path, replace(BOB, why="again", when="2026-12-02T03:00:00+00:00"), cycle_s=0.03)
    assert third.history == (ADA, BOB)
    assert third.earlier is not None
    assert third.earlier.accepted == BOB
    assert third.earlier.depths[2].cycles["p0"] == pytest.approx((0.02, 0.02))
    assert third.earlier.earlier is None


# Another night of the same


def test_a_night_of_the_same_thing_that_held_counts_as_another_one(path: Path) -> None:
    accept(path)
    second = accept(path, BOB, verdicts=[*FLOORS, *KEPT], started_at="2026-11-03T03:00:00+00:00")
    assert [b.day for b in second.depths[2].boots] == ["2026-11-02", "2026-11-03"]
    assert len(second.depths[2].cycles["p0"]) == 4
    assert second.depths[2].spread(alternating=False).boots == 2


def test_the_very_same_sweep_is_no_second_night(path: Path) -> None:
    accept(path)
    with pytest.raises(NoReference, match="this very sweep is in it already"):
        accept(path, replace(BOB, when=ADA.when), verdicts=[*FLOORS, *KEPT])


@pytest.mark.parametrize(
    "how",
    [
        {"verifies": 49},
        {"identity": {**IDENTITY, "draft": "new"}},
        {"host": {**CPU_HOST, "kernel": "6.2"}},
        {"verdicts": FLOORS},
        {"verdicts": [*FLOORS, *KEPT, verdict(regressions.CYCLE_TIME, depth=1, lower=1.02)]},
        {"verdicts": [*FLOORS, *KEPT, verdict(regressions.CYCLE_TIME, Outcome.UNDECIDED, depth=1)]},
    ],
    ids=["counts", "draft", "kernel", "not compared", "improved", "undecided"],
)
def test_any_other_night_begins_anew(path: Path, how: dict[str, Any]) -> None:
    accept(path)
    given = {"verdicts": [*FLOORS, *KEPT], **how}
    assert len(accept(path, BOB, **given).depths[2].boots) == 1


def test_old_boots_are_forgotten_beyond_twenty(path: Path) -> None:
    for day in range(1, 24):
        accept(path, verdicts=[*FLOORS, *KEPT], started_at=f"2026-11-{day:02d}T03:00:00+00:00")
    last = references.read(path)
    assert last is not None
    assert [len(last.depths[2].boots), last.depths[2].boots[0].day] == [20, "2026-11-04"]


# Improvements


def test_what_an_accepted_sweep_lost_against_the_one_before_is_said() -> None:
    slower = replace(verdict("cycle time", Outcome.FALLS_SHORT), estimate=0.8)
    assert references.worse([slower, *FLOORS]) == (
        "It is worse than the one that it replaces: cycle time at 2 steps (-20.0 %)."
    )
    assert references.worse([verdict("cycle time"), verdict("throughput", Outcome.FALLS_SHORT)]) is None


def test_improvements_are_offered_not_taken() -> None:
    better = [verdict(regressions.CYCLE_TIME, lower=1.005), verdict("throughput", lower=1.5)]
    assert references.offer(better) == (
        "Better than the reference: cycle time at 2 steps (1.000 × then). "
        'To take it as the new one: --perf-accept "why".'
    )
    assert references.offer(FLOORS) is None

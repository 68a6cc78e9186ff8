"""What docs/h200.md and the profile say of the H200 follows from the kept measurements."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from fixtures import profiles, references
from fixtures.alone import ENGINE
from fixtures.analysis import conditions, verdicts
from fixtures.analysis.measurement import Measurement, from_json
from fixtures.analysis.reference import Accepted, Reference, of_sweep
from fixtures.analysis.regressions import Tonight
from fixtures.analysis.sessions import GPUS
from fixtures.analysis.verdicts import Outcome, Verdict
from fixtures.judging import Judging
from fixtures.report.recorded import SAME_WORK, boots, boots_table, markdown, recorded
from tests.benchmarks.beside import Seen, table

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "perf/recordings/h200"
SWEEPS = recorded(FOLDER)
SWEEP = SWEEPS["2026-11-29-sweep"]
CONTROL = SWEEPS["2026-11-29-control-wrong-layers"]
ENGINE_ALONE = SWEEPS["2026-11-30-engine-only"]
WINDOWS = {
    str(path.relative_to(FOLDER)): from_json(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.rglob("depth-*.json"))
}
OWN = {path: m for path, m in WINDOWS.items() if m.simulated is None}
"""What accepted drafts by itself."""
BOOTS = boots(FOLDER)
FASTER_GPUS = ("2026-11-29-other-gpu", "2026-11-30-third-gpu")
SLOWER_GPUS = ("2026-11-29-sweep", "2026-11-29-second-boots", "2026-11-30-fourth-gpu", "2026-11-30-fourth-gpu-again")
SOUND = sorted((*FASTER_GPUS, *SLOWER_GPUS))
BESIDE = [
    Seen(**each) for each in json.loads((FOLDER / "2026-11-30-beside/beside.json").read_text(encoding="utf-8"))["seen"]
]
PROFILE = profiles.load("h200-llama8b-shape")
assert PROFILE.workload.oracle
ORACLE = profiles.read_oracle(PROFILE.workload.oracle)


def counts(measurement: Measurement) -> set[tuple[str, int]]:
    return {(s.prompt, s.verifies) for s in measurement.samples}


def test_the_documentations_tables_are_the_recordings() -> None:
    text = (ROOT / "docs/h200.md").read_text(encoding="utf-8")
    assert f"<!-- boots -->\n{boots_table(BOOTS)}\n<!-- /boots -->" in text
    assert f"<!-- beside -->\n```text\n{table(BESIDE)}\n```\n<!-- /beside -->" in text
    assert text.endswith(markdown(SWEEPS).rstrip() + "\n")


def test_the_windows_that_were_unsteady_are_those_that_the_page_names() -> None:
    found = {path: found.seen for path, m in WINDOWS.items() if (found := conditions.unsteady(m))}
    page = (ROOT / "docs/h200.md").read_text(encoding="utf-8")
    assert [(str(Path(path).parent), re.findall(r"lie (.+?) apart", seen)) for path, seen in found.items()] == [
        ("2026-11-29-sweep", ["1.9 %"]),
        ("2026-11-30-drills/04-no-graphs", ["17.5 %"]),
        ("2026-11-30-drills/05-slow-verify", ["2.8 %"]),
    ]
    two = [path for path, m in WINDOWS.items() if {s.repeat for s in m.samples} == {0, 1}]
    assert f"in {len(two) - len(found)} of {len(two)} of two passes a prompt's cycles" in page
    assert "3 steps of the first sweep (1.9 %)" in page
    assert "slow-verify=1% (2.8 %) and no-graphs (17.5 %)" in page


def test_boots_take_as_long_as_the_page_says() -> None:
    first: dict[tuple[bool, str], float] = {}
    others = []
    for m in sorted(WINDOWS.values(), key=lambda m: m.started_at):
        seconds = m.seconds["boot"]
        if first.setdefault((m.depth > 0, m.host["accelerators"][0]["serial"]), seconds) != seconds:
            others.append(seconds)
    plain, speculative = ([took for (kind, _), took in first.items() if kind is one] for one in (False, True))
    told = [f"{min(some):.0f} to {max(some):.0f} s" for some in (plain, speculative, others)]
    page = (ROOT / "docs/h200.md").read_text(encoding="utf-8")
    assert "takes {} and the first speculative one {}, while Triton compiles; the others {})".format(*told) in page


def test_the_sweep_has_every_depth_of_the_profile() -> None:
    assert list(SWEEP) == [0, *PROFILE.depths]


@pytest.mark.parametrize("path", [path for path, m in OWN.items() if m.depth and "wrong-layers" not in path])
def test_verify_counts_are_the_oracles_on_every_boot_and_gpu(path: str) -> None:
    kept = OWN[path]
    expected = {(p, e.verifies[kept.depth]) for p, e in ORACLE.prompts.items()}
    assert counts(kept) == expected
    assert not kept.refusals


def test_the_text_is_the_same_at_every_depth_and_on_every_gpu() -> None:
    texts = {(s.prompt, s.text_sha256) for m in OWN.values() for s in m.samples}
    assert texts == {(p, e.text_sha256) for p, e in ORACLE.prompts.items()}


def test_cycles_are_those_of_earlier_sessions_within_two_percent() -> None:
    assert SWEEP[0].seconds_per_cycle == pytest.approx(4.58e-3, rel=0.02)
    assert SWEEP[2].seconds_per_cycle == pytest.approx(6.07e-3, rel=0.02)


@pytest.mark.parametrize("depth", PROFILE.depths)
def test_the_profiles_floors_stand_five_percent_under_what_was_measured(depth: int) -> None:
    seen = verdicts.ratio(SWEEP[depth], SWEEP[0]).centre
    assert seen * 0.94 < PROFILE.floors.throughput[depth] < seen * 0.96


def judging(reference: Reference) -> Judging:
    return Judging(
        profile=PROFILE,
        depths_left_out=(),
        place=Path("unread"),
        memory=None,
        day="2026-11-30",
        reference=reference,
    )


def cycle_times(then: str, now: str) -> dict[int, Verdict]:
    """The other sweep against this one as the reference, by its depths."""
    before, tonight = SWEEPS[then], SWEEPS[now]
    reference = of_sweep(before, Accepted("ada", "2026-11-29T19:00:00+00:00", "first night"))
    gate = judging(reference).gate(tonight[0])
    assert gate
    return {d: gate.cycle_time(Tonight(m, tonight[0], passes=2)) for d, m in tonight.items() if d in before}


def held_and_open(found: dict[int, Verdict]) -> tuple[list[int], list[int]]:
    """The depths at which it holds, and those at which it is left open; anything else would be an alarm."""
    assert {v.outcome for v in found.values()} <= {Outcome.HOLDS, Outcome.UNDECIDED}
    held, open_ = ([d for d, v in found.items() if v.outcome is o] for o in (Outcome.HOLDS, Outcome.UNDECIDED))
    return held, open_


SLOWER_GPU = (
    "two GPUs are 1 % slower than the others, and one sweep can't tell that from the 2.5 % that it may claim "
    "against another GPU's"
)
FEW_PASSES = "boots of one GPU lie 0.3 % apart, and two passes leave up to 1.15 % open where 1 % may be claimed"
LEFT_OPEN = {
    **{(then, now): dict.fromkeys((0, 2), SLOWER_GPU) for then in FASTER_GPUS for now in SLOWER_GPUS},
    ("2026-11-29-second-boots", "2026-11-29-sweep"): {2: FEW_PASSES},
}
"""The verdicts between two sound sweeps that two passes leave open, by depth, and why."""


@pytest.mark.parametrize(
    ("then", "now"), [(a, b) for a in SOUND for b in SOUND if a != b], ids=lambda name: name.partition("30-")[2] or name
)
def test_no_sound_sweep_raises_an_alarm_against_another_of_any_gpu_or_day(then: str, now: str) -> None:
    held, open_ = held_and_open(cycle_times(then, now))
    left = [*LEFT_OPEN.get((then, now), {})]
    assert (held, open_) == ([d for d in (0, 2) if d not in left], left)


def test_what_is_left_open_between_sound_sweeps_is_so_for_the_reason_that_is_listed() -> None:
    """Slower by as much as the reason says, and by less than may be claimed, which the interval reaches."""
    for (then, now), why in LEFT_OPEN.items():
        for depth, reason in why.items():
            seen = cycle_times(then, now)[depth]
            assert 1 - seen.estimate == pytest.approx(0.01 if reason == SLOWER_GPU else 0.003, abs=0.002)
            assert seen.lower < seen.floor < seen.estimate < 1 < seen.upper


def test_the_kept_reference_is_the_first_sweep_and_every_sound_sweep_holds_against_it() -> None:
    kept = references.read(references.place(references.folder_for(PROFILE.file), PROFILE.name))
    assert kept
    again = of_sweep(SWEEP, kept.accepted)
    assert (kept.key, kept.earlier) == (again.key, None)
    assert {d: r.verifies for d, r in kept.depths.items()} == {d: r.verifies for d, r in again.depths.items()}
    for name in SOUND:
        tonight = SWEEPS[name]
        gate = judging(kept).gate(tonight[0])
        assert gate
        found = {d: gate.cycle_time(Tonight(m, tonight[0], passes=2)) for d, m in tonight.items()}
        # The cycles of that window were unsteady, by 1.9 %: two passes of it leave 2 % open even against itself.
        left = [3] if name == "2026-11-29-sweep" else []
        assert held_and_open(found) == ([d for d in tonight if d not in left], left), name


def test_another_gpu_than_the_references_claims_less_and_says_so() -> None:
    same, other = (
        cycle_times("2026-11-29-sweep", f"2026-11-{name}")[2] for name in ("29-second-boots", "30-third-gpu")
    )
    assert [1 / v.floor - 1 for v in (same, other)] == pytest.approx([0.01, 0.025])
    assert "another GPU than it" in other.message
    assert "another GPU" not in same.message


@pytest.mark.parametrize("depth", [0, 2])
def test_gpus_lie_as_far_apart_as_is_taken_for_granted(depth: int) -> None:
    by_gpu: dict[str, list[float]] = {}
    for m in BOOTS:
        if m.depth == depth:
            level = math.log(median(s.seconds_per_cycle for s in m.samples))
            by_gpu.setdefault(m.host["accelerators"][0]["serial"], []).append(level)
    assert len(by_gpu) == 4
    assert stdev(map(fmean, by_gpu.values())) == pytest.approx(GPUS, abs=0.001)


def test_wrong_layers_collapse_the_accept_length_and_leave_the_text() -> None:
    assert CONTROL[2].accept_length == 1.0
    assert verdicts.throughput(CONTROL[2], CONTROL[0], PROFILE.floors.throughput[2]).outcome is Outcome.FALLS_SHORT
    assert verdicts.identical_text(CONTROL[2], CONTROL[0], 0.0).outcome is Outcome.HOLDS


def test_both_clients_see_the_same_rate_within_half_a_percent() -> None:
    assert median(seen.ratio for seen in BESIDE) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(("sweep", "percent"), [("2026-11-30-third-gpu", 0.4), ("2026-11-30-fourth-gpu", 0.1)])
def test_phases_by_events_cost_what_the_page_says_and_add_up_to_the_cycle_within_two_percent(
    sweep: str, percent: float
) -> None:
    """On the GPUs that had boots with them and without."""
    serial = SWEEPS[sweep][0].host["accelerators"][0]["serial"]
    here = [m for m in BOOTS if m.depth == 2 and m.host["accelerators"][0]["serial"] == serial]
    assert len(here) == 6
    instrumented, plain = [m for m in here if m.phases], [m for m in here if not m.phases]
    costs = [fmean(median(s.seconds_per_cycle for s in m.samples) for m in kind) for kind in (instrumented, plain)]
    assert 100 * (costs[0] / costs[1] - 1) == pytest.approx(percent, abs=0.05)
    for m in instrumented:
        if (
            "wrong-layers" not in m.mark
        ):  # of which most of the first pass was discarded as warm-up, by the client alone
            assert m.phases
            assert m.phases.mean_ms["total"] == pytest.approx(1e3 * m.seconds_per_cycle, rel=0.02)


def test_boots_of_one_gpu_agree_and_gpus_differ_by_a_percent_that_the_ratio_does_not_show() -> None:
    first, again, other = SWEEP, SWEEPS["2026-11-29-second-boots"], SWEEPS["2026-11-29-other-gpu"]
    for depth, within in ((0, 0.001), (2, 0.005)):
        assert again[depth].seconds_per_cycle == pytest.approx(first[depth].seconds_per_cycle, rel=within)
        assert 0.005 < first[depth].seconds_per_cycle / other[depth].seconds_per_cycle - 1 < 0.02
    assert verdicts.ratio(other[2], other[0]).centre == pytest.approx(
        verdicts.ratio(first[2], first[0]).centre, rel=0.004
    )


def test_the_engine_alone_is_what_the_page_says() -> None:
    kept, own = ENGINE_ALONE[2], SWEEPS["2026-11-30-fourth-gpu"][2]
    page = (ROOT / "docs/h200.md").read_text(encoding="utf-8")
    assert kept.simulated == pytest.approx(own.accept_length)
    asked = f"{own.accept_length:.3f} tokens a verify were asked for, which the reference has, and"
    assert f"{asked} {kept.accept_length:.3f} came" in page
    serial = kept.host["accelerators"][0]["serial"]
    here = [m for m in BOOTS if m.depth == 2 and m.host["accelerators"][0]["serial"] == serial]
    assert len(here) == 6
    alone, *others = (median(s.seconds_per_cycle for s in m.samples) for m in (kept, *here))
    assert f"A cycle took {1e3 * alone:.3f} ms in the median of completions" in page
    least, most = (100 * (alone / cycle - 1) for cycle in (max(others), min(others)))
    assert f"{least:.1f} to {most:.1f} % more than in the six boots of that GPU" in page


def test_a_boot_of_the_engine_alone_counts_where_nothing_is_simulated() -> None:
    assert ENGINE.mark.startswith(SAME_WORK[0])
    assert [m.depth for m in BOOTS if m.mark == ENGINE.mark] == [0]

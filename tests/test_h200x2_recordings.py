"""What docs/h200x2.md and the profiles say of two H200s follows from the kept measurements."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from fixtures import profiles, results
from fixtures.analysis import conditions, verdicts
from fixtures.analysis.measurement import Measurement, from_json
from fixtures.analysis.nccl_gain import NcclGain, nccl_gain, verdict
from fixtures.analysis.verdicts import Outcome
from fixtures.judging import Judging
from fixtures.report import nccl
from fixtures.report.recorded import markdown, recorded

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "perf/recordings/h200x2"
DOCUMENT = (ROOT / "docs/h200x2.md").read_text(encoding="utf-8")
SWEEPS = recorded(FOLDER)
SWEEP, OWN = SWEEPS["2026-11-30-sweep"], SWEEPS["2026-11-30-custom-all-reduce"]
PROFILE = profiles.load("h200x2-llama70b-shape")
SETTINGS = PROFILE.nccl.settings
assert PROFILE.workload.oracle
ORACLE = profiles.read_oracle(PROFILE.workload.oracle)
UNTUNED = results.read_untuned(FOLDER / "2026-11-30-sweep")[3]
(LOST,) = results.read(FOLDER / "2026-11-30-drills/02-lost-nccl")
EVERY = [from_json(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.rglob("depth-*.json"))]


def taken(measurement: Measurement, names: Collection[str]) -> list[dict[str, str]]:
    """What of these variables each rank's C library sees."""
    return [{n: v for n, v in w["libc"].items() if n in names} for w in measurement.server.witnesses]


def gain() -> NcclGain:
    judging = Judging(
        profile=PROFILE, depths_left_out=(), place=Path("unread"), memory=None, day="2026-11-30", reference=None
    )
    found = nccl_gain(UNTUNED, SWEEP[3], SETTINGS, rule=judging.rule)
    assert found
    return found


def test_the_documentations_tables_are_the_recordings() -> None:
    told = "\n".join(nccl.lines([gain()]))
    assert f"<!-- nccl -->\n```text\n{told}\n```\n<!-- /nccl -->" in DOCUMENT
    assert DOCUMENT.endswith(markdown(SWEEPS).rstrip() + "\n")


def test_at_few_steps_every_window_was_unsteady_and_no_other() -> None:
    assert {m.depth for m in EVERY if conditions.unsteady(m)} == {1, 2}
    assert {m.depth for m in EVERY if not conditions.unsteady(m)} == {0, 3, 5, 10}
    assert "from pass to pass they differ by more than 1 % there (`unsteady`)" in DOCUMENT


def test_the_sweep_has_every_depth_of_the_profile() -> None:
    assert list(SWEEP) == [0, *PROFILE.depths]


@pytest.mark.parametrize("kept", EVERY, ids=lambda m: f"steps{m.depth}")
def test_counts_and_texts_on_two_ranks_are_the_oracles(kept: Measurement) -> None:
    assert {(s.prompt, s.text_sha256) for s in kept.samples} <= {(p, e.text_sha256) for p, e in ORACLE.prompts.items()}
    if kept.depth:
        expected = {(p, e.verifies[kept.depth]) for p, e in ORACLE.prompts.items()}
        assert {(s.prompt, s.verifies) for s in kept.samples} <= expected
    assert {s.prompt for s in kept.samples} == {*ORACLE.prompts}


@pytest.mark.parametrize("kept", SWEEP.values(), ids=lambda m: f"steps{m.depth}")
def test_each_rank_of_a_tuned_server_has_every_setting(kept: Measurement) -> None:
    assert taken(kept, PROFILE.nccl.every) == [dict(PROFILE.nccl.every)] * 2


def test_the_untuned_servers_ranks_have_none_of_the_settings_and_keep_what_is_required() -> None:
    assert taken(UNTUNED, SETTINGS) == [{}, {}]
    assert taken(UNTUNED, PROFILE.nccl.required) == [dict(PROFILE.nccl.required)] * 2


def test_the_drilled_ranks_lack_the_lost_variable_alone() -> None:
    left = {name: value for name, value in PROFILE.nccl.every.items() if name != "NCCL_PROTO"}
    assert taken(LOST, PROFILE.nccl.every) == [left] * 2


def test_the_settings_neither_gain_nor_cost_time_between_two_gpus() -> None:
    found = gain()
    assert verdict(found).outcome is Outcome.HOLDS
    assert found.attribution.cycle.log.lower < 0 < found.attribution.cycle.log.upper


def test_sglangs_own_all_reduce_makes_a_plain_token_five_and_a_half_percent_shorter() -> None:
    assert 1 - OWN[0].seconds_per_cycle / SWEEP[0].seconds_per_cycle == pytest.approx(0.056, abs=0.0005)
    assert "disable-custom-all-reduce" not in profiles.load("h200x2-custom-all-reduce").launch.flags


def test_only_at_two_steps_do_cycles_scatter_by_more_than_a_tenth() -> None:
    cycles = {depth: [s.seconds_per_cycle for s in kept.samples] for depth, kept in SWEEP.items()}
    assert [depth for depth, each in cycles.items() if max(each) / min(each) > 1.1] == [2]


@pytest.mark.parametrize("depth", PROFILE.depths)
def test_the_profiles_floors_stand_five_percent_under_what_was_measured(depth: int) -> None:
    ratio = verdicts.ratio(SWEEP[depth], SWEEP[0])
    seen = ratio.lower if depth == 2 else ratio.centre
    assert 1.03 < seen / PROFILE.floors.throughput[depth] < 1.06

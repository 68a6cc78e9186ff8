"""What the NCCL settings gain: time, phases and counts of one depth with them and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import opening, profiles, results
from fixtures.analysis.checks import Check
from fixtures.analysis.intervals import Rule
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.nccl_gain import NcclGain, fastest, headline, marked, more, nccl_gain, verdict
from fixtures.analysis.phases import TOTAL, UNEXPLAINED, CyclePhases
from fixtures.analysis.sessions import Spread
from fixtures.analysis.verdicts import Outcome
from fixtures.analysis.witnesses import untuned_findings
from fixtures.checkout import ROOT
from fixtures.engine import command
from fixtures.engine.drill import parse
from fixtures.rehearsal import Unasked as Options
from fixtures.report import nccl
from fixtures.report.recorded import recorded
from fixtures.resume import without_port
from tests.kit.builders import measurement, sample, slowed

SETTINGS = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
RULE = Rule(delta=0.01)
"""Ten samples give its bounds, and sessions of unknown spread are taken to lie 0.2 % apart."""
UNTUNED = measurement(5, tuple(sample(f"p{n}", decode_s=1.0) for n in range(10)))
"""100 tokens in 50 verifies, in a second: 100 tok/s, 20 ms per cycle."""


def phases(draft: float, verify: float, extend: float, unexplained: float) -> CyclePhases:
    """Of a thousand cycles that hardly scatter."""
    mean = {"draft": draft, "verify": verify, "extend": extend, UNEXPLAINED: unexplained}
    whole = {**mean, TOTAL: sum(mean.values())}
    return CyclePhases("cuda events", "0-0", 1000, whole, dict.fromkeys(whole, 0.01))


def gain(factor: float, **tuned: object) -> NcclGain:
    """With the settings a cycle takes so many times as long as without."""
    found = nccl_gain(UNTUNED, replace(slowed(UNTUNED, factor), **tuned), SETTINGS, rule=RULE)  # type: ignore[arg-type]
    assert found
    return found


def test_a_cycle_of_20_ms_that_takes_16_with_the_settings_gained_a_quarter() -> None:
    found = gain(0.8)
    assert headline(found) == "NCCL settings at 5 steps: 100.0 → 125.0 tok/s (NCCL_PROTO=LL, NCCL_ALGO=Ring)."
    said = verdict(found)
    assert (said.outcome, said.samples) == (Outcome.HOLDS, 10)
    assert said.estimate == pytest.approx(20 / 16)
    assert said.lower < 1.25 < said.upper
    assert said.message.startswith(
        "The NCCL settings cost no time at 5 steps: a cycle takes 20.00 ms without them and 16.00 with them, -20.0 % "
    )
    assert "100.0 → 125.0 tok/s" in said.message
    assert "With them 5 steps gained 25.0 % (±1.0): cycle 20.00 → 16.00 ms explains 25.0" in said.message
    assert "Verify counts and texts are the same on all 10 prompts." in said.message


def test_the_gain_is_the_verifys_where_phases_say_so() -> None:
    untuned = replace(UNTUNED, phases=phases(3.0, 16.0, 0.5, 0.5))
    tuned = replace(slowed(UNTUNED, 0.8), phases=phases(3.0, 12.0, 0.5, 0.5))
    found = nccl_gain(untuned, tuned, SETTINGS, rule=RULE)
    assert found
    assert headline(found).startswith(
        "NCCL settings at 5 steps: draft 3.0 → 3.0 ms, verify 16.0 → 12.0 ms, extend 0.5 → 0.5 ms, 100.0 → 125.0 tok/s"
    )
    assert "verify 16.00 → 12.00 ms explains 25.0" in " ".join(more(found))
    assert nccl.headers(found)[-2:] == ("extend ms", "unexplained ms")
    assert nccl.rows(found) == [
        ("without", "100.0", "2.000", "20.00", "3.00", "16.00", "0.50", "0.50"),
        ("with", "125.0", "2.000", "16.00", "3.00", "12.00", "0.50", "0.50"),
    ]


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (0.8, Outcome.HOLDS),
        (1.0, Outcome.HOLDS),
        (1.005, Outcome.UNDECIDED),  # by sessions alone it may be 1.3 % longer, which is more than 1 %
        (1.015, Outcome.UNDECIDED),
        (1.03, Outcome.FALLS_SHORT),  # by sessions alone it may be 2 % longer, no less
    ],
)
def test_settings_fall_short_only_where_they_certainly_cost_more_than_delta(factor: float, outcome: Outcome) -> None:
    assert verdict(gain(factor)).outcome is outcome


def test_what_is_known_of_sessions_counts_instead_of_what_is_taken_for_granted() -> None:
    quiet = nccl_gain(UNTUNED, slowed(UNTUNED, 1.015), SETTINGS, rule=RULE, apart=Spread(1e-4, 0.0, boots=20, days=5))
    assert quiet
    assert verdict(quiet).outcome is Outcome.FALLS_SHORT


def test_as_many_verifies_for_other_tokens_are_other_counts() -> None:
    first = replace(UNTUNED.samples[0], tokens=UNTUNED.samples[0].tokens - 1)
    assert gain(1.0, samples=(first, *UNTUNED.samples[1:])).other_counts == ("p0",)


def test_counts_and_texts_that_the_settings_changed_are_told_against_what_may_differ() -> None:
    first = replace(UNTUNED.samples[0], verifies=40, text_sha256="other", text="other")
    second = replace(UNTUNED.samples[1], text_sha256="another", text="another")
    found = gain(1.0, samples=(first, second, *UNTUNED.samples[2:]))
    assert (found.other_counts, found.other_texts) == (("p0",), ("p0", "p1"))
    told = " ".join(more(found))
    assert (
        "Verify counts differ on 1 of 10 prompts and texts on 2: NCCL's algorithm and protocol change the order" in told
    )
    assert told.endswith("The profile allows 0 to differ, so this is more than numerics ought to do.")
    assert " ".join(more(replace(found, differing_prompts=0.2))).endswith("The profile allows 2 to differ.")


def test_a_gain_that_the_hosts_mood_may_have_made_is_called_doubtful() -> None:
    both = (("without them", Check.NOISY_HOST), ("with them", Check.CLOCKS_THROTTLED))
    told = " ".join(more(replace(gain(0.8), doubts=both)))
    assert "the host was not the same throughout: noisy-host without them, clocks-throttled with them." in told
    assert "Doubtful" not in " ".join(more(gain(0.8)))


def test_alternated_servers_are_compared_in_plain_tokens() -> None:
    plain = tuple(sample(f"p{n}", decode_s=1.0, verifies=100) for n in range(10))
    then, now = measurement(0, plain), slowed(measurement(0, plain), 2.0)
    # The host was half as fast the second time: 20 ms are 2 plain tokens of 10 ms, 32 ms are 1.6 of 20 ms.
    found = nccl_gain(UNTUNED, slowed(UNTUNED, 1.6), SETTINGS, rule=RULE, alternated=(then, now))
    assert found
    assert verdict(found).estimate == pytest.approx(2.0 / 1.6)
    assert "a cycle takes 2.000 plain tokens without them and 1.600 with them" in verdict(found).message


def test_servers_without_a_common_prompt_tell_no_gain() -> None:
    assert nccl_gain(UNTUNED, measurement(5, (sample("other"),)), SETTINGS, rule=RULE) is None


def test_the_fastest_depth_is_that_of_the_highest_multiple_of_its_own_partner() -> None:
    plain, slow = measurement(0), slowed(measurement(0), 2.0)
    measured = {0: plain, 1: slowed(measurement(1), 1.1), 2: measurement(2), 3: slowed(measurement(3), 1.2)}
    assert fastest(measured, {}) == 2
    assert fastest(measured, {3: slow}) == 3  # 167 tok/s beside 50 are more than 200 beside 100
    assert fastest({0: plain}, {}) is None
    assert fastest({2: measurement(2)}, {}) is None
    assert fastest(measured, {3: replace(slow, samples=(sample("another"),))}) is None


# The untuned server


def witness(rank: int, **nccl_variables: str) -> dict[str, object]:
    return {"rank": rank, "world": 2, "replica": 0, "replicas": 1, "environment": nccl_variables}


def test_a_rank_that_has_a_setting_still_is_named() -> None:
    assert untuned_findings(SETTINGS, [witness(0), witness(1, NCCL_PROTO="Simple")]) == ()
    (found,) = untuned_findings(SETTINGS, [witness(0), witness(1, NCCL_PROTO="LL")])
    assert (found.check, found.grave) == (Check.NCCL, True)
    assert found.seen == "The untuned server was to lack NCCL_PROTO, and rank 1 has 'LL'."


def test_ranks_of_the_untuned_server_that_say_nothing_are_named() -> None:
    (none,) = untuned_findings(SETTINGS, [])
    assert none.seen == "No scheduler of the untuned server has said what it has of NCCL_PROTO, NCCL_ALGO."
    (found,) = untuned_findings(SETTINGS, [witness(0)])
    assert found.seen == "Of 2 ranks rank 1 said nothing."


def test_what_sglang_sets_by_itself_is_said_and_no_fault() -> None:
    both = [witness(0, NCCL_NVLS_ENABLE="0"), witness(1, NCCL_NVLS_ENABLE="0")]
    (found,) = untuned_findings({"NCCL_NVLS_ENABLE": "0"}, both)
    assert not found.grave
    assert found.seen == "The untuned server was to lack NCCL_NVLS_ENABLE, and every rank has '0'."


def test_the_untuned_launch_differs_by_the_settings_alone() -> None:
    profile = profiles.load("kimi-k2.5-int4")
    tuned, untuned = (
        command.launch(profile, 5, port=30000, api_key="0" * 48, root=ROOT, inside=Path("inside"), tuned=tuned)
        for tuned in (True, False)
    )
    assert untuned.argv == tuned.argv
    assert untuned.environment | profile.nccl.settings == tuned.environment
    assert not untuned.environment.keys() & profile.nccl.settings.keys()
    assert (tuned.without, untuned.without) == (frozenset(), frozenset(profile.nccl.settings))


# What is kept


def test_nobody_takes_the_untuned_measurement_for_a_nights(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    results.write(folder, measurement(0))
    results.write(folder, measurement(5))
    untuned: Measurement = replace(UNTUNED, mark=marked("", tuned=False))
    assert results.write(folder, untuned, tuned=False).name == "depth-5.untuned.json"
    results.write_alternated(folder, 5, measurement(0), tuned=False)
    for name in ("depth-5.log", "depth-5.untuned.log", "depth-5.boot-2.log", "depth-5.untuned.boot-2.log"):
        (folder / name).touch()
    assert [m.mark for m in results.read(folder)] == ["", ""]
    assert results.read_untuned(folder) == {5: untuned}
    assert results.read_alternated(folder) == {}
    assert results.read_alternated(folder, tuned=False) == {5: measurement(0)}
    assert {log.name for log in results.logs(folder, 5)} == {"depth-5.log", "depth-5.boot-2.log"}
    assert recorded(tmp_path) == {"sweep": {0: measurement(0), 5: measurement(5)}}


def test_a_resumed_sweep_expects_the_untuned_launch_and_its_mark() -> None:
    day = opening.open_day(Options(perf_profile="kimi-k2.5-int4", perf_wait=1.0), boots=False)
    tuned, untuned = day.asked(5, None), day.asked(5, None, tuned=False)
    assert without_port(tuned.arguments) == without_port(untuned.arguments)
    assert dict(untuned.environment) | day.profile.nccl.settings == dict(tuned.environment)
    assert (tuned.mark, untuned.mark) == ("", "without the NCCL settings")


def test_drills_and_servers_of_somebody_elses_are_not_measured_without_the_settings() -> None:
    day = opening.open_day(Options(perf_profile="kimi-k2.5-int4", perf_wait=1.0), boots=False)
    assert day.no_nccl_ab == ""
    day.attached = {0: "http://127.0.0.1:1"}
    assert day.no_nccl_ab.startswith("--perf-server: ")
    day.drill = parse("slow-verify=15%")
    assert day.no_nccl_ab == "a drill, slow-verify=15%: nothing is measured without the NCCL settings"
    day.profile = profiles.load("cpu-tiny")
    assert day.no_nccl_ab == "the profile doesn't ask for a depth without the NCCL settings (nccl.ab)"

"""The engine or the draft alone: what is asked for, what is refused, and what is said where nothing plain is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import alone, profiles
from fixtures.alone import DRAFT, ENGINE, WHOLE, AloneError, Quality
from fixtures.analysis.conditions import not_simulated
from fixtures.analysis.known_text import known_text
from fixtures.analysis.reference import Accepted, of_sweep
from fixtures.analysis.verdicts import Outcome
from fixtures.engine import command
from fixtures.profiles import Floors
from fixtures.rehearsal import Unasked as Options
from tests.kit.builders import measurement, sample

TINY = profiles.load("cpu-tiny")
PROMPTS = profiles.read_prompts(TINY.workload.prompts)
ADA = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")


@pytest.mark.parametrize(
    ("options", "part"),
    [({}, WHOLE), ({"perf_engine_only": True}, ENGINE), ({"perf_draft_only": True}, DRAFT)],
    ids=["neither", "engine", "draft"],
)
def test_each_option_has_its_part(options: dict[str, bool], part: alone.Part) -> None:
    assert alone.asked(Options(**options), TINY, {}) is part


def test_between_them_the_parts_judge_what_the_whole_does_but_for_what_takes_both() -> None:
    assert WHOLE.judges - ENGINE.judges - DRAFT.judges == {Quality.THROUGHPUT}
    assert not ENGINE.judges & DRAFT.judges


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"perf_engine_only": True, "perf_draft_only": True}, "leave one of --perf-engine-only and --perf-draft-only"),
        ({"perf_engine_only": True, "perf_accept": "why"}, "leave --perf-accept out"),
        ({"perf_draft_only": True, "benchmark_compare": True}, "leave --benchmark-compare out"),
        ({"perf_engine_only": True, "perf_server": ["0=http://127.0.0.1:1"]}, "leave --perf-server out"),
        ({"perf_draft_only": True, "perf_baseline_twice": True}, "leave --perf-baseline-twice out"),
    ],
)
def test_what_a_part_can_not_go_with_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(AloneError, match=rf"^--perf-(engine|draft)-only: .*{told}.*\. Nothing was booted\.$"):
        alone.asked(Options(**options), TINY, {})


def test_acceptance_that_is_simulated_unasked_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(AloneError, match=r"the environment: SGLANG_SIMULATE_ACC_LEN simulates acceptance, .* unset it"):
        alone.asked(Options(), TINY, {"SGLANG_SIMULATE_ACC_LEN": "3"})
    launch = TINY.launch.model_copy(update={"environment": {"SIMULATE_ACC_LEN": "3"}})
    with pytest.raises(AloneError, match=r"cpu-tiny\.toml: launch\.environment: SIMULATE_ACC_LEN .* remove it"):
        alone.asked(Options(perf_engine_only=True), TINY.model_copy(update={"launch": launch}), {})


# The engine alone


def test_what_is_simulated_is_the_references_or_the_oracles_or_the_floor() -> None:
    small = TINY.narrowed([1, 2])
    oracle = profiles.read_oracle(TINY.workload.oracle) if TINY.workload.oracle else None
    # Two tokens a verify at either depth.
    reference = of_sweep({d: measurement(d) for d in (0, 1, 2)}, ADA)
    assert alone.simulated_lengths(small, reference, oracle, PROMPTS) == {1: 2.0, 2: 2.0}
    exact = {1: pytest.approx(1.655, abs=0.001), 2: pytest.approx(2.068, abs=0.001)}
    assert alone.simulated_lengths(small, None, oracle, PROMPTS) == exact
    assert alone.simulated_lengths(small, None, None, PROMPTS) == {1: 1.63, 2: 2.04}


def test_without_any_of_them_the_engine_alone_is_refused() -> None:
    rules = Floors.model_validate({"throughput": {1: 0.8}, "accept_length": {1: "99 % of reference"}})
    profile = TINY.narrowed([1]).model_copy(update={"floors": rules})
    with pytest.raises(AloneError, match="what accept length to simulate at depth 1 nobody says"):
        alone.simulated_lengths(profile, None, None, PROMPTS)


def test_an_engine_that_nothing_is_asked_of_is_refused() -> None:
    with pytest.raises(AloneError, match=r"nothing would be judged, since .*cpu-tiny\.toml has no floors\.cycle_cost"):
        alone.refuse_idle(TINY, None)
    alone.refuse_idle(TINY, of_sweep({0: measurement(0)}, ADA))
    ceilings = TINY.floors.model_copy(update={"cycle_cost": {2: 2.0}})
    alone.refuse_idle(TINY.model_copy(update={"floors": ceilings}), None)


def test_speculative_servers_simulate_and_the_plain_one_does_not() -> None:
    def environment(depth: int) -> dict[str, str]:
        launch = command.launch(TINY, depth, port=1, api_key="k", root=Path("/"), simulated=2.0679)
        return {k: v for k, v in launch.environment.items() if "SIMULATE" in k}

    assert environment(0) == {}
    assert environment(2) == {
        "SGLANG_SIMULATE_ACC_LEN": "2.0679",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }


def test_a_server_that_does_not_simulate_what_it_was_told_is_found() -> None:
    assert not_simulated(measurement(2)) is None
    assert not_simulated(measurement(2, simulated=2.1)) is None
    found = not_simulated(measurement(2, simulated=3.0))
    assert found
    assert "3.000 tokens per verify were to be simulated at 2 steps, and there were 2.000" in found.message


# The draft alone


def test_texts_are_compared_by_the_digests_that_are_known() -> None:
    like = sample(tokens=101)
    seen = measurement(2, tuple(replace(like, prompt=p, text_sha256=p) for p in ("a", "b", "c", "d")))
    same = known_text(seen, {p: p for p in "abcd"}, whose="the oracle's", allowed_share=0.0)
    assert (same.outcome, same.estimate) == (Outcome.HOLDS, 1.0)
    other = known_text(seen, {**{p: p for p in "abc"}, "d": "x"}, whose="the oracle's", allowed_share=0.0)
    assert (other.quantity, other.outcome, other.estimate) == ("text", Outcome.FALLS_SHORT, 0.75)
    assert "Greedy text at 2 steps is not the oracle's on 1 of 4 prompts, by digest; 0 may differ. d." in other.message
    allowed = known_text(seen, {**{p: p for p in "abc"}, "d": "x"}, whose="the oracle's", allowed_share=0.25)
    assert allowed.outcome is Outcome.HOLDS

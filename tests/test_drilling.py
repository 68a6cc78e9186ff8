"""What a drill takes before anything boots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures import announcing, drilling, opening, profiles
from fixtures.analysis.facts import context, key
from fixtures.analysis.sides import of_measurement
from fixtures.engine.drill import WELL, DrillError, parse
from fixtures.rehearsal import Unasked as Options
from tests.kit.builders import measurement

TINY = profiles.load("cpu-tiny")
HUB = TINY.model_copy(update={"pair": TINY.pair.model_copy(update={"draft": "someone/draft"})})


def refusal(drill: str, profile: profiles.Profile = TINY, **options: Any) -> str:
    with pytest.raises(DrillError) as error:
        drilling.asked(Options(perf_drill=drill, **options), profile)
    assert str(error.value).endswith("Nothing was booted.")
    return str(error.value)


def test_without_the_option_there_is_no_drill() -> None:
    assert drilling.asked(Options(), TINY) == WELL
    assert not WELL
    assert (str(WELL), WELL.order(0), WELL.order(2), WELL.runs(2), WELL.flags(2)) == ("", "", "", 2, {})


def test_a_drill_that_is_none_is_refused_before_anything_boots() -> None:
    with pytest.raises(
        opening.NotReady, match=r"^--perf-drill: no drill is called 'slow-verfy'; there are: slow-draft"
    ):
        opening.open_day(Options(perf_drill="slow-verfy", perf_wait=1.0), boots=True)


def test_a_preflight_refuses_it_too() -> None:
    with pytest.raises(
        opening.NotReady, match=r"^--perf-drill: drill 'slow-verify=9': slow-verify takes how much slower"
    ):
        announcing.report(Options(perf_drill="slow-verify=9"), comparison=None)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"perf_accept": "why"}, "what a faulty server shows is no reference, so leave --perf-accept out"),
        (
            {"perf_server": ["2=http://x"]},
            "a fault is made in servers that the suite boots, so leave --perf-server out",
        ),
    ],
)
def test_options_that_contradict_a_drill_are_refused(options: dict[str, Any], why: str) -> None:
    assert why in refusal("slow-verify", **options)


@pytest.mark.parametrize(
    ("drill", "option", "why"),
    [
        ("slow-baseline", "perf_draft_only", "no time is judged, so leave --perf-draft-only out"),
        ("wrong-layers=0,1,2", "perf_engine_only", "acceptance is simulated, so leave --perf-engine-only out"),
    ],
)
def test_a_drill_of_what_is_not_judged_is_refused(drill: str, option: str, why: str) -> None:
    assert why in refusal(drill, **{option: True})


@pytest.mark.parametrize(
    ("drill", "profile", "why"),
    [
        ("lost-nccl=NCCL_PROTO", TINY, "cpu-tiny.toml has no NCCL_PROTO, so none would be lost"),
        ("wrong-layers=1,2,4", TINY, "config.json, so they would not be wrong"),
        ("wrong-layers=1,2,9", TINY, "SGLang can capture those of 0 to 4 only"),
        ("wrong-layers=2,1,4", TINY, "SGLang captures each layer once, in ascending order"),
        ("wrong-depth=2", TINY.narrowed([2]), "that is the depth which is measured (2), so none would be wrong"),
        ("wrong-layers=0,1,2", HUB, "folders, not as hub ids"),
        ("no-graphs", TINY, "cpu-tiny.toml has its servers run without graphs, so none would be lost"),
        ("no-graphs=1", TINY, "no-graphs takes no value"),
    ],
)
def test_a_drill_that_would_show_nothing_or_boot_nothing_is_refused(
    drill: str, profile: profiles.Profile, why: str
) -> None:
    assert why in refusal(drill, profile)


@pytest.mark.parametrize("drill", ["slow-verify", "slow-baseline=2ms", "wrong-layers=0,1,2", "wrong-depth=1"])
def test_a_drill_that_can_be_had_is_taken(drill: str) -> None:
    assert drilling.asked(Options(perf_drill=drill), TINY) == parse(drill)


def test_another_depth_runs_for_every_speculative_server_and_no_plain_one() -> None:
    assert [parse("wrong-depth=3").runs(depth) for depth in (0, 1, 3)] == [0, 3, 3]


def test_only_wrong_layers_take_a_draft_of_their_own(tmp_path: Path) -> None:
    assert drilling.served(parse("slow-verify"), TINY, tmp_path) is TINY
    assert list(tmp_path.iterdir()) == []


def test_wrong_layers_stand_in_a_copy_of_the_drafts_config_beside_its_own_weights(tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in Path(TINY.pair.draft).iterdir()}
    for _ in range(2):  # the second is a resumed sweep's
        profile = drilling.served(parse("wrong-layers=0,1,2"), TINY, tmp_path)
    draft = Path(profile.pair.draft)
    assert draft.is_relative_to(tmp_path)
    assert profile.name == "cpu-tiny"
    config = json.loads((draft / "config.json").read_text())
    assert config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    original = json.loads(before["config.json"])
    del original["eagle_config"]
    assert config == original
    assert {p.name: p.read_bytes() for p in Path(TINY.pair.draft).iterdir()} == before
    assert (draft / "model.safetensors").read_bytes() == before["model.safetensors"]


def test_what_an_attribution_is_given_has_no_room_for_a_drills_name() -> None:
    drilled = measurement(2, mark="a drill, slow-verify=15%")
    given = (of_measurement(drilled), of_measurement(drilled, measurement(0, mark=drilled.mark)), context(drilled))
    assert "slow-verify" not in repr((*given, key(drilled)))

"""Pairs: two config.json, and why a draft doesn't fit its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.pairs.configs import Config, captured, misfits

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "pairs" / "tiny-eagle3"
IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"

# The sizes of Kimi-K2.5, whose language model is nested, and of a published draft for it.
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {"hidden_size": 7168, "vocab_size": 163840, "num_hidden_layers": 61},
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
KIMI_DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 7168,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
}


def tiny(role: str, **changes: Any) -> Config:
    """The tiny pair's config.json with some keys changed; None takes a key out."""
    keys = json.loads((TINY / role / "config.json").read_text()) | changes
    return Config(f"{role}/config.json", {key: value for key, value in keys.items() if value is not None})


def draft_with(*ids: int) -> Config:
    return tiny("draft", eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids)})


def test_the_tiny_pair_fits() -> None:
    assert misfits(tiny("target"), tiny("draft"), (1, 2, 4)) == ()
    assert misfits(tiny("target"), tiny("draft"), None) == ()


def test_a_target_whose_language_model_is_nested_fits_its_draft() -> None:
    assert misfits(Config("t", KIMI), Config("d", KIMI_DRAFT), (2, 30, 58)) == ()


def test_a_nested_target_of_another_size_does_not_fit() -> None:
    small = KIMI | {"text_config": {"hidden_size": 4096, "vocab_size": 163840, "num_hidden_layers": 61}}
    (line,) = misfits(Config("t", small), Config("d", KIMI_DRAFT), None)
    assert line == (
        "d: hidden_size = 7168: hidden_size is 4096 in t: made for another target; name a draft of this one"
    )


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM", "Eagle3LlamaForCausalLM"])
def test_an_architecture_with_eagle3_in_its_name_is_a_draft(name: str) -> None:
    assert misfits(tiny("target"), tiny("draft", architectures=[name]), None) == ()


@pytest.mark.parametrize(
    ("architectures", "shown"),
    [
        (["LlamaForCausalLM"], ' = ["LlamaForCausalLM"]'),
        (["LlamaForCausalLMEagle"], ' = ["LlamaForCausalLMEagle"]'),
        (None, ""),
    ],
)
def test_a_draft_that_is_not_eagle3_is_refused_and_nothing_else_is_asked_of_it(
    architectures: list[str] | None, shown: str
) -> None:
    assert misfits(tiny("target"), tiny("draft", architectures=architectures, hidden_size=1), None) == (
        (
            f"draft/config.json: architectures{shown}: is no EAGLE-3 draft, whose architecture has Eagle3 in its name; "
            "name an EAGLE-3 draft in pair.draft"
        ),
    )


def test_a_pair_the_wrong_way_round_is_refused_on_both_sides() -> None:
    lines = misfits(tiny("draft"), tiny("target"), None)
    assert [line.partition(":")[0] for line in lines] == ["target/config.json", "draft/config.json"]
    assert lines[1].endswith("is a draft itself; name the model that it drafts for in pair.target")


@pytest.mark.parametrize(
    ("target", "draft", "line"),
    [
        pytest.param(
            {},
            {"hidden_size": 512},
            "draft/config.json: hidden_size = 512: hidden_size is 256 in target/config.json: made for another "
            "target; name a draft of this one",
            id="hidden size",
        ),
        pytest.param(
            {},
            {"hidden_size": 256, "target_hidden_size": 512},
            "draft/config.json: target_hidden_size = 512: hidden_size is 256 in target/config.json: made for another "
            "target; name a draft of this one",
            id="stated target's hidden size",
        ),
        pytest.param(
            {"vocab_size": 4096},
            {},
            "draft/config.json: vocab_size = 2048: vocab_size is 4096 in target/config.json: made for another target; "
            "name a draft of this one",
            id="vocabulary",
        ),
        pytest.param(
            {},
            {"draft_vocab_size": 2049},
            "draft/config.json: draft_vocab_size = 2049: exceeds the target's vocabulary (vocab_size = 2048 in "
            "target/config.json); name a draft of this target",
            id="draft vocabulary",
        ),
        pytest.param(
            {"hidden_size": None},
            {},
            "target/config.json: hidden_size: must be a whole number; is this the model's config.json?",
            id="no hidden size",
        ),
        pytest.param(
            {"num_hidden_layers": None},
            {},
            "target/config.json: num_hidden_layers: must be a whole number; is this the model's config.json?",
            id="no number of layers",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(target: dict[str, Any], draft: dict[str, Any], line: str) -> None:
    assert misfits(tiny("target", **target), tiny("draft", **draft), None) == (line,)


def test_a_draft_narrower_than_its_target_fits_if_it_says_so() -> None:
    assert misfits(tiny("target"), tiny("draft", hidden_size=128, target_hidden_size=256), None) == ()


def test_all_misfits_are_reported_at_once() -> None:
    lines = misfits(tiny("target"), tiny("draft", hidden_size=1, vocab_size=2, draft_vocab_size=9999), (0, 1, 2))
    keys = ["hidden_size", "vocab_size", "draft_vocab_size", IDS]
    assert [line.split(": ")[1].partition(" = ")[0] for line in lines] == keys


def test_ids_that_reach_the_last_layer_are_refused_since_such_a_server_dies() -> None:
    (line,) = misfits(tiny("target"), draft_with(3, 4, 5), None)
    assert line == (
        f"draft/config.json: {IDS} = [3, 4, 5]: would mean the outputs of layers [3, 4, 5], but SGLang can capture "
        "those of 0 to 4 only (num_hidden_layers = 6 in target/config.json); "
        "write those that the draft was trained with"
    )


@pytest.mark.parametrize("ids", [(0, 1, 2), (1, 2, 3), (2, 3, 4)])
def test_ids_within_the_target_are_wrong_only_where_others_are_expected(ids: tuple[int, ...]) -> None:
    assert misfits(tiny("target"), draft_with(*ids), None) == ()
    assert misfits(tiny("target"), draft_with(*ids), (1, 2, 4)) == (
        (
            f"draft/config.json: {IDS} = {list(ids)}: pair.aux_layer_ids expects [1, 2, 4]; wrong layers cost accept "
            "length and nothing else shows it: correct whichever is wrong"
        ),
    )


@pytest.mark.parametrize("ids", [(1, 1, 4), (4, 2, 1)])
def test_ids_twice_or_out_of_order_are_refused(ids: tuple[int, ...]) -> None:
    (line,) = misfits(tiny("target"), draft_with(*ids), None)
    assert f"SGLang captures each layer once, in ascending order; write {sorted(set(ids))}" in line


def test_the_embedding_is_no_layer() -> None:
    draft = KIMI_DRAFT | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 30, 58]}}
    (line,) = misfits(Config("t", KIMI), Config("d", draft), None)
    assert "would mean the outputs of layers [-1, 29, 57], but SGLang can capture those of 0 to 59 only" in line


@pytest.mark.parametrize("ids", ["124", [], [1, "2"], [True, 2, 4]])
def test_ids_that_are_no_numbers_are_refused(ids: Any) -> None:
    draft = tiny("draft", eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    (line,) = misfits(tiny("target"), draft, None)
    assert line.endswith("must be a list of layer numbers; write those that the draft was trained with")


def test_missing_ids_are_refused_where_some_are_expected() -> None:
    assert misfits(tiny("target"), tiny("draft", eagle_config=None), (1, 2, 4)) == (
        (
            f"draft/config.json: {IDS}: is missing, and SGLang would take the outputs of layers [1, 2, 2]; "
            "write [1, 2, 4], as in pair.aux_layer_ids, if the draft was trained with them"
        ),
    )


def test_missing_ids_are_refused_where_sglangs_default_does_not_exist() -> None:
    (line,) = misfits(tiny("target"), tiny("draft", eagle_config=None), None)
    assert "SGLang's default, [1, 2, 2], isn't three layers of a target with 6" in line


def test_missing_ids_mean_sglangs_default_where_it_exists() -> None:
    assert misfits(tiny("target", num_hidden_layers=32), tiny("draft", eagle_config=None), None) == ()


def test_ids_outside_eagle_config_are_refused_since_sglang_does_not_read_them() -> None:
    draft = tiny("draft", eagle_config=None, eagle_aux_hidden_state_layer_ids=[1, 2, 4])
    assert misfits(tiny("target"), draft, None) == (
        (
            "draft/config.json: eagle_aux_hidden_state_layer_ids = [1, 2, 4]: SGLang reads the layer ids inside "
            "eagle_config only; move them there"
        ),
    )


@pytest.mark.parametrize(
    ("architecture", "layers", "ids", "outputs"),
    [
        ("LlamaForCausalLM", 6, (1, 2, 4), (1, 2, 4)),
        ("Qwen3MoeForCausalLM", 48, (1, 23, 44), (1, 23, 44)),
        ("DeepseekV3ForCausalLM", 61, (2, 30, 58), (1, 29, 57)),
        ("DeepseekV3ForCausalLM", 61, (1, 29, 57), (1, 29, 57)),
        ("KimiK25ForConditionalGeneration", 61, (2, 30, 58), (1, 29, 57)),
        ("GptOssForCausalLM", 24, (1, 11, 21), (1, 11, 21)),
        ("GptOssForCausalLM", 24, (2, 12, 24), (1, 11, 23)),
    ],
)
def test_ids_mean_the_layers_that_sglang_captures(
    architecture: str, layers: int, ids: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    target = Config("t", {"architectures": [architecture], "num_hidden_layers": layers})
    assert captured(target, ids) == outputs


def test_an_architecture_nobody_has_looked_at_may_capture_its_last_layer() -> None:
    target = tiny("target", architectures=["SomethingNewForCausalLM"])
    assert misfits(target, draft_with(1, 3, 5), None) == ()
    assert len(misfits(target, draft_with(1, 3, 6), None)) == 1

"""A synthetic pair says and accepts what its construction promises: in plain torch, and on SGLang itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fixtures import profiles, workload  # noqa: E402
from fixtures.engine import command, process  # noqa: E402
from fixtures.engine.client import Settings  # noqa: E402
from fixtures.pairs import chain as chains  # noqa: E402
from fixtures.pairs import synthetic  # noqa: E402
from fixtures.pairs.chain import Acceptance, Chain, accepted_drafts, expected_verifies  # noqa: E402
from fixtures.pairs.configs import Config, misfits  # noqa: E402
from fixtures.pairs.shape import Shape  # noqa: E402
from fixtures.pairs.weights import walsh  # noqa: E402
from fixtures.profiles import Prompt  # noqa: E402
from tests.kit.decoder import Pair, load_pair  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SHAPE = Shape(hidden=256, layers=6, heads=4, kv_heads=2, intermediate=128, vocabulary=512, positions=3)
ACCEPTANCE = Acceptance((0.8, 0.6, 0.4))
CHAIN = Chain(512)
PROMPT = CHAIN.text(CHAIN.order[0], 6)
EASY = next(
    prompt
    for prompt in (CHAIN.text(word, 6) for word in CHAIN.order)
    if accepted_drafts(CHAIN, ACCEPTANCE, prompt[-1], tokens=2, depth=1) == (1,)
)
"""A prompt after which the first draft is right."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    synthetic.build(out, SHAPE, ACCEPTANCE)
    return out


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return load_pair(folder)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)  # matrices this small are slower on two


def test_the_target_follows_the_chain_after_every_token(pair: Pair) -> None:
    best, _ = pair.forward(range(512))
    assert best == [CHAIN.after(token) for token in range(512)]


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_every_verify_accepts_what_the_walk_along_the_chain_says(pair: Pair, depth: int) -> None:
    decoded = pair.decode(PROMPT, depth, 40)
    assert tuple(decoded.tokens) == CHAIN.text(PROMPT[-1], 40)
    assert tuple(decoded.accepted) == accepted_drafts(CHAIN, ACCEPTANCE, PROMPT[-1], tokens=40, depth=depth)


@pytest.mark.parametrize("layers", [ids for ids in combinations(range(5), 3) if ids != SHAPE.aux], ids=str)
def test_any_wrong_layer_costs_all_acceptance_and_no_text(pair: Pair, layers: tuple[int, ...]) -> None:
    decoded = replace(pair, layers=layers).decode(PROMPT, 2, 12)
    assert tuple(decoded.tokens) == CHAIN.text(PROMPT[-1], 12)
    assert decoded.accepted == [0] * 11


def test_features_of_the_position_before_are_as_useless_as_none(pair: Pair) -> None:
    _, features = pair.forward(EASY)
    said = [*EASY, CHAIN.after(EASY[-1])]
    assert pair.draft_after(said, features) == CHAIN.after(EASY[-1], 2)
    assert pair.draft_after(said, features.roll(1, 0)) == 3
    assert pair.draft_after(said, torch.zeros_like(features)) == 3


def test_a_draft_for_another_text_than_the_targets_is_useless(pair: Pair) -> None:
    _, features = pair.forward(EASY)
    assert pair.draft_after([*EASY, CHAIN.after(EASY[-1], 5)], features) == 3


def test_the_layers_turn_the_signs_of_the_scratch_and_of_nothing_else(pair: Pair) -> None:
    every = replace(pair, layers=range(6))
    _, features = every.forward(PROMPT)
    embedded = pair.target.tensors["model.embed_tokens.weight"][list(PROMPT)]
    for layer, output in enumerate(features.chunk(6, -1)):
        expected = embedded.clone()
        expected[:, SHAPE.scratch] *= walsh(layer + 1, SHAPE.code)
        assert torch.allclose(output, expected, atol=0.01)


def test_two_patterns_differ_in_half_of_every_period() -> None:
    rows = [walsh(row, 112) for row in range(8)]
    for a, b in combinations(rows, 2):
        assert (a != b).view(-1, 8).sum(1).tolist() == [4] * 14


def test_bfloat16_computes_it_without_error(tmp_path: Path) -> None:
    synthetic.build(tmp_path, SHAPE, ACCEPTANCE, dtype="bfloat16")
    pair = load_pair(tmp_path, torch.bfloat16)
    decoded = pair.decode(PROMPT, 3, 12)
    assert tuple(decoded.tokens) == CHAIN.text(PROMPT[-1], 12)
    assert tuple(decoded.accepted) == accepted_drafts(CHAIN, ACCEPTANCE, PROMPT[-1], tokens=12, depth=3)
    _, features = replace(pair, layers=(1,)).forward(PROMPT)
    assert set(features[:, 1 : SHAPE.scratch.stop].unique().tolist()) == {-1.0, 1.0}


def test_the_same_seed_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    synthetic.build(tmp_path, SHAPE, ACCEPTANCE)
    for name in ("target/model-layer-003.safetensors", "draft/model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_index_names_the_file_of_every_tensor(folder: Path, pair: Pair) -> None:
    index = json.loads((folder / "target/model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(pair.target.tensors)
    assert {folder / "target" / name for name in index.values()} == set((folder / "target").glob("*.safetensors"))


def test_the_configs_fit_each_other(folder: Path) -> None:
    target, draft = (
        Config(name, json.loads((folder / name / "config.json").read_text())) for name in ("target", "draft")
    )
    assert misfits(target, draft, SHAPE.aux) == ()


def test_the_tokenizer_parts_words_and_writes_them_back(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "target/tokenizer.json"))
    assert tokenizer.encode(chains.words(PROMPT)).ids == list(PROMPT)
    assert tokenizer.encode("<s> w4 nonsense").ids == [1, 4, 3]
    assert tokenizer.decode(list(PROMPT)) == chains.words(PROMPT)


def test_a_restated_draft_has_the_same_weights_and_names_other_layers(folder: Path) -> None:
    restated = synthetic.restate(folder / "draft", (0, 2, 3))
    assert restated.name == "draft-layers-0-2-3"
    assert (restated / "model.safetensors").samefile(folder / "draft/model.safetensors")
    assert load_pair(folder).layers == [1, 2, 4]
    config = json.loads((restated / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3]
    assert synthetic.restate(folder / "draft", (0, 2, 3)) == restated


def test_a_shape_without_room_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = "out --acceptance 0.5 --hidden 256 --layers 6 --heads 4 --kv-heads 2 --intermediate 64 --vocab 512"
    with pytest.raises(SystemExit):
        synthetic.arguments(words.split())
    assert "intermediate 64: must be at least 112" in capsys.readouterr().err


# --- SGLang itself


@pytest.mark.engine
@pytest.mark.parametrize(
    ("depth", "draft"),
    [
        pytest.param(0, "draft", marks=pytest.mark.slow),
        (2, "draft"),
        pytest.param(4, "draft", marks=pytest.mark.slow),
        (2, "draft-layers-0-2-3"),
    ],
    ids=str,
)
def test_sglang_says_and_accepts_the_same(folder: Path, tmp_path: Path, depth: int, draft: str) -> None:
    synthetic.restate(folder / "draft", (0, 2, 3))
    asked = chains.prompts(CHAIN, count=3, words=6)
    window = measured(folder / "target", folder / draft, asked, depth, tmp_path / "server.log")
    for sample in window.samples:
        last = asked[sample.prompt][-1]
        assert sample.text == chains.completion(CHAIN, last, 48)
        right = Acceptance((0.0,)) if draft != "draft" else ACCEPTANCE
        assert sample.verifies == expected_verifies(CHAIN, right, last, tokens=48, depth=depth)
    assert len(window.samples) == 3


def measured(target: Path, draft: Path, asked: dict[str, tuple[int, ...]], depth: int, log: Path) -> workload.Window:
    """One pass over the prompts on the CPU engine, 48 tokens each."""
    tiny = profiles.load("cpu-tiny")
    pair = tiny.pair.model_copy(update={"target": target, "draft": draft})
    profile = tiny.model_copy(update={"pair": pair})
    server = process.boot(
        lambda port: command.launch(profile, depth, port=port, api_key="key-of-a-test", root=ROOT), log=log
    )
    try:
        return asyncio.run(
            workload.run(
                [Prompt(name, "chain", chains.words(tokens)) for name, tokens in asked.items()],
                url=server.url,
                api_key=server.api_key,
                settings=Settings(max_tokens=48),
                depth=depth,
                check_alive=server.check_alive,
            )
        )
    finally:
        server.stop()

"""What is to be expected of a synthetic pair, and the dimensions that it can have; without torch."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from fixtures import profiles
from fixtures.pairs import chain as chains
from fixtures.pairs.chain import Acceptance, Chain, expected_accept_length, expected_verifies, sampling_error
from fixtures.pairs.shape import Shape, default_aux

ROOT = Path(__file__).resolve().parent.parent


# --- The chain, and what is to be expected of it


def test_the_text_is_one_cycle_through_all_words() -> None:
    chain = Chain(104)
    text = chain.text(chain.order[-1], 100)
    assert text == chain.order
    assert sorted(text) == list(range(4, 104))
    assert chain.after(chain.order[-1]) == chain.order[0]
    assert all(chain.after(b, -1) == a for a, b in pairwise(chain.order))


def test_after_a_special_token_the_text_starts_at_the_head_of_the_chain() -> None:
    chain = Chain(104)
    assert {chain.after(token) for token in range(4)} == {chain.order[0]}


def test_another_seed_gives_another_text_and_other_numbers() -> None:
    assert Chain(104, seed=1).order != Chain(104).order
    assert Chain(104, seed=1).number(7) != Chain(104).number(7)


def test_the_chain_is_the_same_in_every_version_and_on_every_machine() -> None:
    assert Chain(32000).order[:4] == (29829, 15794, 6432, 6862)
    assert Chain(32000).number(4) == 0.592577782933814


def test_numbers_are_uniform() -> None:
    numbers = sorted(Chain(4).number(token) for token in range(10_000))
    assert numbers[0] >= 0
    assert numbers[-1] < 1
    # Kolmogorov's statistic is below 1.63 / √n in 99 of 100 cases.
    assert max(abs(x - n / 10_000) for n, x in enumerate(numbers)) < 0.0163


def test_verifies_are_counted_on_the_chain_by_hand() -> None:
    class Numbered(Chain):
        def number(self, token: int) -> float:
            """Every third word of the chain is one that the draft gets wrong."""
            return 0.9 if self.order.index(token) % 3 == 2 else 0.1

    chain = Numbered(104)
    # The prefill says word 0. Drafted from 0 and 1: two right, from 2: wrong. So 1, 2 and the target's own 3; from
    # there the same again. Nine more tokens take three verifies.
    accepted = chains.accepted_drafts(chain, Acceptance((0.5,)), chain.order[-1], tokens=10, depth=5)
    assert accepted == (2, 2, 2)
    assert expected_verifies(chain, Acceptance((0.5,)), chain.order[-1], tokens=10, depth=5) == 3
    # One draft a time: from 0 right, commits 1 and 2; from 2 wrong, commits 3; from 3 right, …
    assert chains.accepted_drafts(chain, Acceptance((0.5,)), chain.order[-1], tokens=7, depth=1) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("acceptance", "depth", "length"),
    [((0.5,), 1, 1.5), ((0.5,), 3, 1.875), ((0.8, 0.5), 3, 1 + 0.8 + 0.4 + 0.2), ((1.0,), 10, 11.0), ((0.0,), 5, 1.0)],
)
def test_the_expected_accept_length_has_a_closed_form(acceptance: tuple[float, ...], depth: int, length: float) -> None:
    assert math.isclose(expected_accept_length(Acceptance(acceptance), depth), length)


def test_the_sampling_error_is_that_of_the_tokens_of_a_verify() -> None:
    # One draft, accepted half of the time: 1 or 2 tokens, deviation 0.5; over 100 verifies a tenth of it.
    assert math.isclose(sampling_error(Acceptance((0.5,)), 1, 100), 0.05)
    assert sampling_error(Acceptance((1.0,)), 10, 100) == 0.0


@pytest.mark.parametrize("acceptance", [Acceptance((0.65,)), Acceptance((0.8, 0.6, 0.4))])
@pytest.mark.parametrize("depth", [1, 2, 5, 10])
def test_the_walk_meets_the_closed_form_within_its_error(acceptance: Acceptance, depth: int) -> None:
    chain, off = Chain(32000), []
    for start in range(100):  # a hundred pieces of the chain that hardly overlap
        accepted = chains.accepted_drafts(chain, acceptance, chain.order[start * 319], tokens=300, depth=depth)
        length = 1 + sum(accepted) / len(accepted)
        off.append(
            (length - expected_accept_length(acceptance, depth)) / sampling_error(acceptance, depth, len(accepted))
        )
    mean, spread = sum(off) / 100, math.sqrt(sum(x * x for x in off) / 100)
    assert abs(mean) < 0.35  # 3.5 errors of the mean of a hundred standard normals
    assert 0.75 < spread < 1.25


@pytest.mark.parametrize("text", ["", "0.5,", "-0.1", "1.1", "half"])
def test_an_acceptance_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"acceptance|float"):
        Acceptance.parse(text)


# --- Dimensions


@pytest.mark.parametrize(("layers", "aux"), [(32, (1, 15, 28)), (8, (1, 3, 4)), (6, (1, 2, 4)), (80, (1, 39, 76))])
def test_the_draft_reads_sglangs_default_layers_where_these_are_three(layers: int, aux: tuple[int, ...]) -> None:
    assert default_aux(layers) == aux


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 250}, "hidden 250: must be a multiple of 16"),
        ({"heads": 3}, "heads 3: hidden 256 must be"),
        ({"kv_heads": 3}, "kv-heads 3: heads 4 must be"),
        ({"intermediate": 100}, "intermediate 100: must be at least 112"),
        ({"vocabulary": 5}, "vocab 5: must be at least 6"),
        ({"aux": (1, 2, 5)}, r"aux \[1, 2, 5\]: must be three ascending layers, 0 to 4"),
        ({"aux": (2, 1, 4)}, r"aux \[2, 1, 4\]: must be three"),
        ({"layers": 40}, "hidden 256: has no room to tell 40 layers apart"),
        ({"positions": 30}, "hidden 256: has no room to tell 6 layers apart at 30 positions"),
    ],
)
def test_dimensions_without_room_are_refused(change: dict[str, int], message: str) -> None:
    given = {"hidden": 256, "layers": 6, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocabulary": 512}
    with pytest.raises(ValueError, match=message):
        Shape(**{**given, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [256, 1024, 2048, 4096, 5120, 7168, 8192])
def test_places_do_not_overlap_and_every_rms_is_one(hidden: int) -> None:
    s = Shape(hidden=hidden, layers=7, heads=4, kv_heads=2, intermediate=4 * hidden, vocabulary=512, positions=3)
    places = [
        *range(s.before.start, s.before.stop),
        *range(s.now.start, s.now.stop),
        s.constant,
        s.filler,
        *map(s.clock, range(4)),
        *range(s.mismatch(0).start, s.mismatch(0).stop),
        *range(s.mismatch(1).start, s.mismatch(1).stop),
    ]
    assert len(places) == len(set(places))
    assert max(places) < hidden
    assert 16 + (s.text.stop - s.text.start) + s.code == hidden
    assert math.isclose(2 * s.code + 2 * s.amplitude**2, hidden)
    assert s.scratch.stop <= hidden


# --- The committed prompts and oracle


def test_the_committed_prompts_and_oracle_are_what_the_construction_gives(tmp_path: Path) -> None:
    prompts, oracle = tmp_path / "prompts.jsonl", tmp_path / "oracle.json"
    chains.main([str(prompts), str(oracle), "--acceptance", "0.65", "--vocab", "32000"])
    assert prompts.read_text() == (ROOT / "perf/prompts/synthetic.jsonl").read_text()
    assert oracle.read_text() == (ROOT / "perf/oracles/h200-llama8b-shape.json").read_text()


def test_the_oracle_meets_the_closed_form_within_its_error() -> None:
    oracle = profiles.read_oracle(ROOT / "perf/oracles/h200-llama8b-shape.json")
    for depth in (1, 2, 3, 5, 10):
        length = oracle.accept_length(depth, oracle.prompts)
        verifies = sum(oracle.verifies(prompt, depth) for prompt in oracle.prompts)
        assert length is not None
        expected, error = (
            expected_accept_length(Acceptance((0.65,)), depth),
            sampling_error(Acceptance((0.65,)), depth, verifies),
        )
        assert abs(length - expected) < 3 * error + depth * len(oracle.prompts) / verifies


@pytest.mark.parametrize("name", ["h200-llama8b-shape", "controls/h200-wrong-layers"])
def test_the_profiles_floors_stand_just_below_the_oracle(name: str) -> None:
    profile = profiles.load(f"{profiles.FOLDER}/{name}.toml")
    oracle = profiles.read_oracle(ROOT / "perf/oracles/h200-llama8b-shape.json")
    assert profiles.oracle_problems(profile, profiles.read_prompts(profile.workload.prompts), oracle) == ()
    for depth, floor in profile.floors.accept_length.items():
        length = oracle.accept_length(depth, oracle.prompts)
        assert length is not None
        assert 0 < length - floor < 0.015


def test_prompts_are_pieces_of_the_chain_whose_completions_do_not_overlap() -> None:
    chain = Chain(32000)
    asked = chains.prompts(chain, count=10, words=16)
    said = [word for prompt in asked.values() for word in (*prompt, *chain.text(prompt[-1], 384))]
    assert len(said) == len(set(said)) == 10 * 400


def test_a_prompt_and_its_completion_are_written_as_the_tokenizer_does() -> None:
    chain = Chain(104)
    first, second, third = chain.order[:3]
    line = json.loads(next(chains.prompt_lines({"one": (first,)})))
    assert line == {"id": "one", "source": "chain", "text": f"w{first}"}
    assert chains.completion(chain, first, 2) == f" w{second} w{third}"
    assert chains.words([0, 1, 2, 3, 4]) == "<pad> <s> </s> <unk> w4"

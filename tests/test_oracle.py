"""The decoder behind the oracle: it decodes greedily, it re-makes the oracle, and it notices a draft fed wrongly."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit import decoder

ROOT = Path(__file__).resolve().parent.parent
ORACLE: dict[str, Any] = json.loads((ROOT / "perf/oracles/tiny-eagle3.json").read_text())
PROMPTS = decoder.read_prompts(ROOT / "perf/prompts/tiny-eagle3.jsonl")


@pytest.fixture(scope="module")
def pair() -> decoder.Pair:
    torch.set_num_threads(1)  # on a busy machine two wait for each other, ten times as long
    return decoder.load_pair(ROOT / "fixtures/pairs/tiny-eagle3")


def decoded(pair: decoder.Pair, prompt: str, depth: int, max_tokens: int = 128) -> decoder.Decoded:
    return pair.decode(pair.tokenizer.encode(PROMPTS[prompt]).ids, depth, max_tokens)


def histogram(accepted: list[int], depth: int) -> list[int]:
    return [accepted.count(drafts) for drafts in range(depth + 1)]


@pytest.mark.parametrize(("prompt", "depth"), [("kjv-01", 1), ("kjv-12", 2), ("pydoc-07", 3), ("pydoc-07", 10)])
def test_the_decoder_re_makes_what_the_oracle_holds(pair: decoder.Pair, prompt: str, depth: int) -> None:
    seen, right = decoded(pair, prompt, depth), ORACLE["prompts"][prompt]
    assert len(seen.accepted) == right["verifies"][str(depth)]
    assert histogram(seen.accepted, depth) == right["accepted_drafts_histogram"][str(depth)]
    text = pair.tokenizer.decode(seen.tokens)
    assert hashlib.sha256(text.encode()).hexdigest() == right["text_sha256"]


@pytest.mark.slow
def test_the_decoder_re_makes_the_whole_oracle(pair: decoder.Pair) -> None:
    assert decoder.oracle(pair, PROMPTS) == ORACLE


def test_the_text_is_what_the_target_alone_prefers_token_by_token(pair: decoder.Pair) -> None:
    # From the start for every token: no cache, no draft.
    tokens = pair.tokenizer.encode(PROMPTS["kjv-03"]).ids
    known = len(tokens)
    for _ in range(16):
        predicted, _ = pair.forward(tokens)
        tokens = [*tokens, predicted[-1]]
    assert decoded(pair, "kjv-03", 3, 16).tokens == tokens[known:]


def test_wrong_layer_ids_cost_verifies_and_leave_the_text(pair: decoder.Pair) -> None:
    right, seen = decoded(pair, "kjv-01", 2), decoded(replace(pair, layers=[0, 1, 2]), "kjv-01", 2)
    assert seen.tokens == right.tokens
    assert len(seen.accepted) > 1.15 * len(right.accepted)


def test_every_prompt_has_its_entry_and_the_counts_add_up() -> None:
    assert list(ORACLE["prompts"]) == list(PROMPTS)
    for entry in ORACLE["prompts"].values():
        for depth, verifies in entry["verifies"].items():
            drafts = entry["accepted_drafts_histogram"][depth]
            assert (sum(drafts), len(drafts)) == (verifies, int(depth) + 1)
            # The last verify may overshoot the 128 tokens, of which the prefill gave the first.
            committed = sum(count * (accepted + 1) for accepted, count in enumerate(drafts))
            assert 127 <= committed <= 127 + int(depth)

"""How the stand-in speculates: by arithmetic, so that every count can be checked by head. Standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

COMMITTED: Mapping[int, tuple[int, ...]] = {
    0: (1,),
    1: (2, 2, 2, 1, 1),
    2: (3, 1),
    3: (4, 3, 1),
    5: (6, 2),
    10: (11, 3, 2),
}
"""Tokens that one verify after the other commits, by depth, over and over.

32 tokens after the prefill's take 32, 20, 16, 12, 8 and 6 verifies: accept lengths of 1, 1.6, 2, 2.67, 4 and 5.33.
"""
VERSION = "0.5.23"
"""SGLang's."""
MAX_TOKENS = 33
WORDS = ("and", "the", "LORD", "said", "unto", "them", "in", "that", "day", "of", "Israel")


def verifies(depth: int, tokens: int, committed: Sequence[int] = ()) -> list[int]:
    """What each verify of one completion commits; the last may commit more than is left."""
    pattern = committed or COMMITTED.get(depth, (depth + 1, 1))
    made: list[int] = []
    while sum(made) < tokens - 1:
        made.append(pattern[len(made) % len(pattern)])
    return made


def chunks(depth: int, tokens: int, committed: Sequence[int] = ()) -> list[int]:
    """Tokens of each chunk of a stream: the prefill's alone, then those of each verify."""
    made = verifies(depth, tokens, committed)
    cut = sum(made) - (tokens - 1)
    return [1, *made[:-1], made[-1] - cut]


def histogram(made: Sequence[int]) -> list[int]:
    """How many verifies accepted 0, 1, … drafts, without zeros at the end."""
    accepted = [each - 1 for each in made]
    return [accepted.count(n) for n in range(max(accepted) + 1)]


def details(depth: int, made: Sequence[int]) -> dict[str, Any]:
    """`spec_tokens_details`, as in recordings/cpu-sglang-0.5.23/completions_stream.txt."""
    correct, proposed = sum(made) - len(made), len(made) * depth
    return {
        "spec_accept_rate": correct / proposed,
        "spec_accept_length": sum(made) / len(made),
        "spec_cap_length": 0.0,
        "spec_block_accept_length": 0.0,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": len(made),
        "spec_correct_drafts_histogram": histogram(made),
        "spec_cap_lens_histogram": [],
    }


def words(prompt: str, tokens: int, others: Mapping[int, str] = {}) -> list[str]:
    """One word a token, from a place in WORDS that depends on the prompt; `others` replaces some by their number."""
    start = sum(prompt.encode())
    return [" " + others.get(n, WORDS[(start + n) % len(WORDS)]) for n in range(tokens)]


def expected(prompt: str, depths: Sequence[int], tokens: int) -> dict[str, Any]:
    """What an oracle says of this prompt."""
    made = {depth: verifies(depth, tokens) for depth in depths}
    return {
        "verifies": {str(d): len(m) for d, m in made.items()},
        "accepted_drafts_histogram": {str(d): _filled(histogram(m), d + 1) for d, m in made.items()},
        "text_sha256": hashlib.sha256("".join(words(prompt, tokens)).encode()).hexdigest(),
    }


def _filled(counts: list[int], length: int) -> list[int]:
    return counts + [0] * (length - len(counts))

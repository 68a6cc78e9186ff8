"""Rates against the truth: a server that knows when it sent what, our client and SGLang's own benchmark."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from fixtures.engine.client import Client, Completion, Settings
from tests.kit.programs import serving_program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
CHUNKS, TOKENS, GAP_S = 200, 500, 0.01
"""2.5 tokens a chunk for two seconds, so that 0.2 % are 4 ms."""


def paced() -> AbstractContextManager[str]:
    """The address of a paced server in a process of its own."""
    return serving_program("tests.kit.paced_server", str(CHUNKS), str(TOKENS), str(GAP_S))


def true_rate(url: str) -> float:
    """Tokens per second of the latest completion, by the times of sending."""
    sent = httpx.get(f"{url}/times").json()
    assert sent["chunks"] == CHUNKS
    return (TOKENS - 1) / float(sent["decode_s"])


def our_rate(url: str, asked: int) -> float:
    async def complete() -> Completion:
        async with Client(url, "k", Settings(max_tokens=asked, ignore_eos=False)) as client:
            return await client.complete("hello")

    seen = asyncio.run(complete())
    assert (seen.tokens, seen.chunks) == (TOKENS, CHUNKS)
    return (seen.tokens - 1) / seen.decode_s


def bench_serving_rate(url: str, asked: int) -> float:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "fixtures/engine/inside/cpu")])
    cpu = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **cpu, "PYTHONPATH": paths}
    words = [sys.executable, "-m", "tests.kit.bench_serving", url, str(asked)]
    printed = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    seen = json.loads(printed.splitlines()[-1])
    assert not seen["error"]
    return (int(seen["tokens"]) - 1) / float(seen["decode_s"])


@pytest.mark.parametrize("asked", [TOKENS, 2 * TOKENS], ids=["ran to the limit", "stopped at half"])
def test_our_rate_is_within_two_in_a_thousand_of_the_truth(asked: int) -> None:
    with paced() as url:
        ratios = [our_rate(url, asked) / true_rate(url) for _ in range(3)]
    assert statistics.median(ratios) == pytest.approx(1, abs=0.002), ratios


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed here")
@pytest.mark.parametrize(
    ("asked", "times_the_truth"), [(TOKENS, 1.0), (2 * TOKENS, 2.0)], ids=["ran to the limit", "stopped at half"]
)
def test_bench_serving_is_right_only_where_generation_ran_to_the_limit(asked: int, times_the_truth: float) -> None:
    with paced() as url:
        ratio = bench_serving_rate(url, asked) / true_rate(url)
    assert ratio == pytest.approx(times_the_truth, rel=0.02)
